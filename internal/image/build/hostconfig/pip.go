package hostconfig

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
)

// pipOptions are the settings of pip that say where packages come from and how to
// get there, by their names in configuration files. Others (a target directory,
// a cache, what to do without a virtual environment) are about the machine.
var pipOptions = []string{
	"index-url", "extra-index-url", "no-index", "find-links", "trusted-host", "proxy", "timeout", "default-timeout",
	"retries", "cert", "client-cert", "prefer-binary", "only-binary", "no-binary", "disable-pip-version-check",
}

// pip merges pip's configuration files in the order in which pip reads them, and
// passes its variables on.
func (s *Snapshot) pip(context.Context) error {
	var merged ini
	for _, name := range s.pipFiles() {
		b, err := s.read(name)
		if err != nil {
			return err
		}
		merged.read(string(b))
	}
	var out strings.Builder
	for _, section := range merged.sections {
		header := "[" + section.name + "]\n"
		for _, o := range section.options {
			value, err := s.pipValue(o.key, o.value)
			if err != nil {
				return err
			}
			if value != "" {
				out.WriteString(header + o.key + " = " + strings.ReplaceAll(value, "\n", "\n    ") + "\n")
				header = ""
			}
		}
	}
	if out.Len() > 0 {
		target, err := s.write("pip.conf", []byte(out.String()))
		if err != nil {
			return err
		}
		s.set["PIP_CONFIG_FILE"] = target
	}
	for _, key := range pipOptions {
		name := "PIP_" + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))
		if s.env[name] == "" || slices.Contains(bundleVariables, name) {
			continue
		}
		value, err := s.pipValue(key, s.env[name])
		if err != nil {
			return err
		}
		if value != "" {
			s.set[name] = value
		}
	}
	return nil
}

// pipFiles lists pip's configuration files, the most general first.
func (s *Snapshot) pipFiles() []string {
	if s.env["PIP_CONFIG_FILE"] == "/dev/null" {
		return nil
	}
	var files []string
	xdg := s.env["XDG_CONFIG_DIRS"]
	if xdg == "" {
		xdg = "/etc/xdg"
	}
	for dir := range strings.SplitSeq(xdg, ":") {
		files = append(files, path.Join(dir, "pip/pip.conf"))
	}
	files = append(files, "/etc/pip.conf")
	if home := s.env["HOME"]; home != "" {
		config := s.env["XDG_CONFIG_HOME"]
		if config == "" {
			config = path.Join(home, ".config")
		}
		files = append(files, path.Join(home, ".pip/pip.conf"), path.Join(config, "pip/pip.conf"))
	}
	if own := s.env["PIP_CONFIG_FILE"]; own != "" {
		files = append(files, own)
	}
	return files
}

// pipValue is what a setting amounts to inside: files and directories are where
// the sandbox sees them, and what it cannot see is left out. "" means no such setting.
func (s *Snapshot) pipValue(key, value string) (string, error) {
	switch {
	case !slices.Contains(pipOptions, key):
		return "", nil
	case key == "cert":
		return s.copy(value)
	case key == "client-cert":
		if !s.opts.Credentials {
			return "", nil
		}
		return s.copy(value)
	case key == "find-links", key == "index-url", key == "extra-index-url":
		var kept []string
		for place := range strings.FieldsSeq(value) {
			where, err := s.pipPlace(place)
			if err != nil {
				return "", err
			}
			if where != "" {
				kept = append(kept, where)
			}
		}
		return strings.Join(kept, " "), nil
	}
	return s.url(value), nil
}

// pipPlace is where packages come from: a URL, or a directory of the machine.
func (s *Snapshot) pipPlace(place string) (string, error) {
	file, isFile := strings.CutPrefix(place, "file://")
	switch {
	case !isFile && strings.Contains(place, "://"):
		return s.url(place), nil
	case !path.IsAbs(file):
		return "", nil // relative to a directory that the server is not in
	}
	target, err := s.directory(file)
	if target != "" && isFile {
		target = "file://" + target
	}
	return target, err
}

// ini is a configuration file as Python's configparser reads it, as far as pip
// uses it.
type ini struct {
	sections []*iniSection
}

type iniSection struct {
	name    string
	options []*iniOption
}

type iniOption struct{ key, value string }

// read merges a file into what is there already: the later value counts.
func (f *ini) read(text string) {
	var section *iniSection
	var option *iniOption
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "" || trimmed[0] == '#' || trimmed[0] == ';':
			continue
		case trimmed[0] == '[' && strings.HasSuffix(trimmed, "]"):
			section, option = f.section(strings.TrimSpace(trimmed[1:len(trimmed)-1])), nil
			continue
		case (line[0] == ' ' || line[0] == '\t') && option != nil:
			option.value = strings.TrimSpace(option.value + "\n" + trimmed)
			continue
		}
		i := strings.IndexAny(trimmed, "=:")
		if section == nil || i <= 0 {
			continue
		}
		key := strings.ReplaceAll(strings.ToLower(strings.TrimSpace(trimmed[:i])), "_", "-")
		option = section.option(key)
		option.value = strings.TrimSpace(trimmed[i+1:])
	}
}

func (f *ini) section(name string) *iniSection {
	for _, s := range f.sections {
		if s.name == name {
			return s
		}
	}
	s := &iniSection{name: name}
	f.sections = append(f.sections, s)
	return s
}

func (s *iniSection) option(key string) *iniOption {
	for _, o := range s.options {
		if o.key == key {
			return o
		}
	}
	o := &iniOption{key: key}
	s.options = append(s.options, o)
	return o
}

// String says what the snapshot holds without saying it: for logs.
func (s *Snapshot) String() string {
	return fmt.Sprintf("host configuration: %d variables, %d binds", len(s.Env), len(s.Binds))
}

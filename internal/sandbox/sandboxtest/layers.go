package sandboxtest

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"brisk.dev/brisk/internal/fault"
)

func (s *suite) upper(f *Fixture) {
	t := f.T
	spec := f.Spec("change", "/data")
	spec.Upper = true
	errs := NewOutput(t)
	spec.Stderr = errs.File
	sb := f.Start(spec)
	if e := f.Wait(sb); e.Code != 0 {
		f.Destroy(sb)
		t.Fatalf("change: %+v %s", e, errs.Text())
	}
	var b bytes.Buffer
	if err := sb.Upper(Context(t), &b); err != nil {
		t.Fatalf("upper: %v", err)
	}
	got := map[string]string{}
	var order []string
	r := tar.NewReader(&b)
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		text := string(content)
		if len(text) > 20 {
			text = fmt.Sprintf("%d bytes", len(text))
		}
		var x strings.Builder
		for k, v := range h.PAXRecords {
			if n, ok := strings.CutPrefix(k, "SCHILY.xattr."); ok {
				x.WriteString(" " + n + "=" + v)
			}
		}
		got[h.Name] = fmt.Sprintf("%c %o %d:%d %s%s%s", h.Typeflag, h.Mode, h.Uid, h.Gid, text, h.Linkname, x.String())
		if h.Name == "data/created" && !h.ModTime.Equal(time.Unix(1e9, 5e8)) {
			t.Errorf("time of created: got %v", h.ModTime)
		}
		if h.Typeflag == tar.TypeChar && (h.Devmajor != 0 || h.Devminor != 0) {
			t.Errorf("%s is device %d:%d", h.Name, h.Devmajor, h.Devminor)
		}
		order = append(order, h.Name)
	}
	want := map[string]string{
		"./":                 "5 755 0:0 ",
		"data/":              "5 755 0:0 ",
		"data/created":       "0 640 1234:70000 new user.note=hello",
		"data/linked":        "1 640 1234:70000 data/created",
		"data/symlink":       "2 777 0:0 created",
		"data/modified":      "0 644 0:0 changed",
		"data/deleted":       "3 0 0:0 ",
		"data/chmodded":      "0 4755 0:0 same",
		"data/replaced/":     "5 750 0:0  trusted.overlay.opaque=y",
		"data/replaced/only": "0 600 0:0 x",
		"data/gone":          "3 0 0:0 ",
		"data/big":           "0 644 0:0 3145728 bytes",
	}
	if !reflect.DeepEqual(got, want) {
		for k := range want {
			if got[k] != want[k] {
				t.Errorf("%s: got %q, want %q", k, got[k], want[k])
			}
		}
		for k := range got {
			if want[k] == "" {
				t.Errorf("%s: %q is not wanted", k, got[k])
			}
		}
	}
	for i := 1; i < len(order); i++ {
		if order[i-1] > order[i] && !strings.HasPrefix(order[i], order[i-1]) && order[i-1] != "./" {
			t.Errorf("order: %s before %s", order[i-1], order[i])
		}
	}
	if err := f.Start(f.Spec("sleep")).Upper(Context(t), io.Discard); !fault.Is(err, fault.Invalid) {
		t.Errorf("upper of a sandbox without: got %v, want invalid", err)
	}
}

package image

import (
	"archive/tar"
	"strings"

	"brisk.dev/brisk/internal/fault"
)

// Whiteouts is the convention in which a layer says what of the layers below is gone.
type Whiteouts uint8

// The conventions. The zero value is that of OCI.
const (
	// OCI: a file ".wh.NAME" removes NAME, a file ".wh..wh..opq" all that lower
	// layers have in its directory.
	OCI Whiteouts = iota
	// Overlay: a character device 0:0 removes what has its name, a directory with
	// the xattr trusted.overlay.opaque=y hides what lower layers have in it.
	Overlay
	// NoWhiteouts: an archive that adds and replaces only; no name is special.
	NoWhiteouts
)

// Names of the OCI convention. Other names with the prefix metaPrefix are
// housekeeping of the union filesystem that the convention comes from.
const (
	whPrefix   = ".wh."
	metaPrefix = ".wh..wh."
	whOpaque   = ".wh..wh..opq"
)

// mark is what an entry's name or kind says beyond itself.
type mark uint8

const (
	isFile     mark = iota
	isWhiteout      // removes target
	isOpaque        // clears its directory
	isIgnored
)

// read tells what an entry with this base name is and, for a whiteout, the name that goes.
func (w Whiteouts) read(base string, h *tar.Header) (m mark, target string, err error) {
	switch w {
	case OCI:
		switch {
		case base == whOpaque:
			return isOpaque, "", nil
		case strings.HasPrefix(base, metaPrefix):
			return isIgnored, "", nil
		case strings.HasPrefix(base, whPrefix):
			target = base[len(whPrefix):]
			if target == "" || target == "." || target == ".." {
				return isFile, "", fault.New(fault.Invalid, "a whiteout of %q", target)
			}
			return isWhiteout, target, nil
		}
	case Overlay:
		if h.Typeflag == tar.TypeChar && h.Devmajor == 0 && h.Devminor == 0 {
			return isWhiteout, base, nil
		}
	}
	return isFile, "", nil
}

// overlayXattr takes what overlayfs keeps in xattrs of its upper layer: whether it
// is such an attribute, and whether it makes a directory opaque.
func overlayXattr(name, value string) (own, opaque bool, err error) {
	key, own := strings.CutPrefix(name, "trusted.overlay.")
	if !own {
		key, own = strings.CutPrefix(name, "user.overlay.")
	}
	if !own {
		return false, false, nil
	}
	switch key {
	case "opaque":
		return true, value == "y", nil
	case "redirect", "metacopy":
		// Its content is elsewhere; to take it as it stands would lose files.
		return true, false, fault.New(fault.Invalid, "the overlay was used with %s, which a layer cannot express", key)
	}
	return true, false, nil
}

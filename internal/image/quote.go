package image

import "strconv"

// quote writes a name from an image for a message: printable, and of bounded length.
func quote(name string) string {
	const most = 200
	if len(name) > most {
		return strconv.Quote(name[:most]) + "..."
	}
	return strconv.Quote(name)
}

// Package termtext makes texts of guests and of the network fit for a terminal.
package termtext

import (
	"strings"
	"unicode"
)

// Printable replaces what a terminal would interpret, or that cannot be seen: the guest chose the names.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}

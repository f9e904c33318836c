package egress

import (
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// labelToASCII is the form that DNS has of a label (RFC 5890): lower case, or xn-- and Punycode if it has other letters
// than ASCII. They are mapped and checked as browsers do it for a look-up (UTS 46, not transitional). at is the byte
// offset of what is wrong. ASCII labels stay as they are but for the case: DNS has names, such as _dmarc, that are no
// host's.
func labelToASCII(label string) (ascii string, at int, problem string) {
	at = strings.IndexFunc(label, func(r rune) bool { return r >= utf8.RuneSelf })
	if at < 0 {
		return strings.ToLower(label), 0, ""
	}
	ascii, err := idna.Lookup.ToASCII(label)
	if err != nil || strings.Contains(ascii, ".") {
		return "", at, "this label has no ASCII form: write the name's ASCII form (xn--...), as your browser shows it"
	}
	return ascii, 0, ""
}

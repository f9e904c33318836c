package egress

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// labelToASCII is the form that DNS has of a label (RFC 5890): lower case, or xn-- and Punycode if it has other letters
// than ASCII. Letters that Unicode would first map to others, join with their neighbours or order by direction need tables that
// are not here; those labels have to be written in their ASCII form. at is the byte offset of what is wrong.
func labelToASCII(label string) (ascii string, at int, problem string) {
	lower := make([]rune, 0, len(label))
	for i, r := range label {
		const capitalDottedI, palochka, capitalSharpS = 0x0130, 0x04C0, 0x1E9E // their lower case is not what IDNA makes of them
		special := r == capitalDottedI || r == palochka || r == capitalSharpS
		r = unicode.ToLower(r)
		if special || r >= utf8.RuneSelf && !mapsToItself(r) {
			return "", i, "this character has no certain ASCII form: write the name's ASCII form (xn--...), as your browser shows it"
		}
		lower = append(lower, r)
	}
	if text := string(lower); len(text) == len(lower) {
		return text, 0, ""
	}
	if strings.HasPrefix(string(lower), "xn--") {
		return "", 0, "a label that begins with xn-- is in its ASCII form already"
	}
	if len(lower) > maxLabel {
		return "", 0, "this label is too long"
	}
	return "xn--" + punycode(lower), 0, ""
}

// selfMapped are lower-case letters that IDNA (RFC 5892, and UTS 46's mapping) leaves as they are, in any order.
var selfMapped = [...][2]rune{
	{0x00DF, 0x00F6}, {0x00F8, 0x0131}, {0x0134, 0x013E}, {0x0141, 0x0148}, {0x014A, 0x017E}, // Latin
	{0x0390, 0x0390}, {0x03AC, 0x03CE}, // Greek
	{0x0430, 0x045F}, {0x048A, 0x04FF}, // Cyrillic
	{0x3041, 0x3096}, {0x30A1, 0x30FA}, {0x30FC, 0x30FC}, // Hiragana, Katakana
	{0x3400, 0x4DBF}, {0x4E00, 0x9FFF}, // Han
	{0xAC00, 0xD7A3}, // Hangul syllables
}

func mapsToItself(r rune) bool {
	for _, s := range selfMapped {
		if s[0] <= r && r <= s[1] {
			return unicode.IsLetter(r)
		}
	}
	return false
}

// punycode encodes a label (RFC 3492 section 6.3).
func punycode(label []rune) string {
	const base, tMin, tMax = 36, 1, 26
	var out strings.Builder
	for _, r := range label {
		if r < utf8.RuneSelf {
			out.WriteRune(r)
		}
	}
	basic := out.Len()
	if basic > 0 {
		out.WriteByte('-')
	}
	n, delta, bias := rune(utf8.RuneSelf), 0, 72
	for handled := basic; handled < len(label); n++ {
		next := nextRune(label, n)
		delta += int(next-n) * (handled + 1)
		n = next
		for _, r := range label {
			if r < n {
				delta++
			}
			if r != n {
				continue
			}
			q := delta
			for k := base; ; k += base {
				t := min(max(k-bias, tMin), tMax)
				if q < t {
					break
				}
				out.WriteByte(digit(t + (q-t)%(base-t)))
				q = (q - t) / (base - t)
			}
			out.WriteByte(digit(q))
			bias = adapt(delta, handled+1, handled == basic)
			delta = 0
			handled++
		}
		delta++
	}
	return out.String()
}

// nextRune is the smallest one that is not yet encoded.
func nextRune(label []rune, from rune) rune {
	next := rune(unicode.MaxRune)
	for _, r := range label {
		if r >= from && r < next {
			next = r
		}
	}
	return next
}

// adapt follows the size of the deltas (RFC 3492 section 6.1).
func adapt(delta, points int, first bool) int {
	const base, tMin, tMax, skew, damp = 36, 1, 26, 38, 700
	if first {
		delta /= damp
	} else {
		delta /= 2
	}
	delta += delta / points
	k := 0
	for ; delta > (base-tMin)*tMax/2; k += base {
		delta /= base - tMin
	}
	return k + (base-tMin+1)*delta/(delta+skew)
}

func digit(d int) byte { return "abcdefghijklmnopqrstuvwxyz0123456789"[d] }

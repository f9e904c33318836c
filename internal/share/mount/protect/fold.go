package protect

import (
	"regexp"
	"strings"
	"sync"
	"unicode"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// Fold is the same for all names that some host takes for one: in any case, composed or not, with the code points that HFS+ and the case-insensitive
// directories of ext4 ignore, and with what Windows ignores at the end. It folds on every host, since a directory may lie on any file system.
func Fold(name string) string {
	name = trimEnd(name)
	if isPlain(name) {
		return strings.ToLower(name)
	}
	visible := strings.Map(func(r rune) rune {
		if unicode.In(r, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) {
			return -1
		}
		return r
	}, name)
	return trimEnd(norm.NFKC.String(cases.Fold().String(norm.NFKD.String(visible))))
}

// trimEnd cuts the dots and spaces that Windows drops. A name of nothing else stays.
func trimEnd(name string) string {
	if cut := strings.TrimRight(name, ". "); cut != "" {
		return cut
	}
	return name
}

// foldFile is Fold for what a name in a directory may mean, which may be a stream of a file of NTFS.
func foldFile(name string) string {
	if at := strings.IndexByte(name, ':'); at > 0 {
		name = name[:at]
	}
	return Fold(name)
}

func isPlain(name string) bool {
	for i := range len(name) {
		if name[i] >= 0x80 {
			return false
		}
	}
	return true
}

// short matches the names that Windows makes up for files with longer ones, such as GIT~1: the beginning, or two letters and a hash, and the
// extension's beginning.
var short = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([^.~]{1,6})~[0-9]{1,6}(\.[^.]{0,3})?$`) })

var hashed = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{4}$`) })

// isShort says whether a folded name may be the short one of another folded name.
func isShort(name, of string) bool {
	if strings.IndexByte(name, '~') < 0 {
		return false
	}
	match := short().FindStringSubmatch(name)
	if match == nil {
		return false
	}
	keep := strings.NewReplacer(" ", "", "+", "_", ",", "_", ";", "_", "=", "_", "[", "_", "]", "_")
	long := strings.TrimLeft(of, ".")
	base, extension := long, ""
	if dot := strings.LastIndexByte(long, '.'); dot > 0 {
		base, extension = long[:dot], long[dot+1:]
	}
	base, extension = keep.Replace(strings.ReplaceAll(base, ".", "")), keep.Replace(extension)
	if strings.TrimPrefix(match[2], ".") != extension[:min(3, len(extension))] {
		return false
	}
	head := match[1]
	return strings.HasPrefix(base, head) || len(head) > 4 && hashed().MatchString(head[len(head)-4:]) && strings.HasPrefix(base, head[:len(head)-4])
}

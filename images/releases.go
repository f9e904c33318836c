package images

import (
	"errors"
	"fmt"
	"strings"

	"agentvm/internal/host/platform"
)

// release is one file of an Alpine release that can be downloaded and verified.
type release struct {
	version      string // as 3.24.2
	architecture platform.Architecture
	sha512       string // hex
}

const alpineFlavor = "alpine-minirootfs"

// isVersion reports whether text is that many numbers of up to four digits with dots between them.
func isVersion(text string, numbers int) bool {
	parts := strings.Split(text, ".")
	for _, part := range parts {
		if len(part) < 1 || len(part) > 4 || strings.IndexFunc(part, func(r rune) bool { return r < '0' || r > '9' }) >= 0 {
			return false
		}
	}
	return len(parts) == numbers
}

// fileName returns the release's name on the server.
func (r release) fileName() string {
	return alpineFlavor + "-" + r.version + "-" + r.architecture.Machine() + ".tar.gz"
}

// branch returns the release's directory on the server.
func (r release) branch() string {
	return "v" + r.version[:strings.LastIndexByte(r.version, '.')]
}

// parseReleases finds the mini root file system for an architecture in a latest-releases.yaml: a list of flat mappings, of which only
// plain and quoted one-line values matter. It skips block scalars (descriptions), and is no YAML parser.
func parseReleases(text []byte, a platform.Architecture) (release, error) {
	item := releaseItem{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\r\n\t ")
		if rest, ok := strings.CutPrefix(line, "-"); ok && !strings.HasPrefix(rest, "-") {
			if found, err := item.release(a); found.version != "" || err != nil {
				return found, err
			}
			item, line = releaseItem{}, " "+rest
		}
		item.add(line)
	}
	found, err := item.release(a)
	if err == nil && found.version == "" {
		err = fmt.Errorf("the list of releases has no %s for %s", alpineFlavor, a.Machine())
	}
	return found, err
}

// releaseItem is one mapping of the list.
type releaseItem struct {
	values map[string]string
	indent int
}

// add takes the value of a line that is indented like the item's first; others belong to block scalars.
func (i *releaseItem) add(line string) {
	key, value, ok := strings.Cut(strings.TrimSpace(line), ":")
	if !ok {
		return
	}
	indent := len(line) - len(strings.TrimLeft(line, " "))
	if i.values == nil {
		i.values, i.indent = map[string]string{}, indent
	}
	if _, twice := i.values[key]; !twice && indent == i.indent {
		i.values[key] = strings.Trim(strings.TrimSpace(value), `"'`)
	}
}

// release returns the release that the item describes, or none when it is about another file.
func (i *releaseItem) release(a platform.Architecture) (release, error) {
	item := i.values
	if item["flavor"] != alpineFlavor || item["arch"] != a.Machine() {
		return release{}, nil
	}
	found := release{version: item["version"], architecture: a, sha512: strings.ToLower(item["sha512"])}
	switch {
	case !isVersion(found.version, 3):
		return release{}, fmt.Errorf("the list of releases names an odd version %.40q", found.version)
	case !isHex(found.sha512, 128):
		return release{}, errors.New("the list of releases has no SHA-512 for the release")
	case item["file"] != found.fileName():
		return release{}, fmt.Errorf("the list of releases names an odd file %.80q", item["file"])
	}
	return found, nil
}

// parseChecksum reads a .sha512 file: hex digits, blanks, the file's name.
func parseChecksum(text []byte, file string) (string, error) {
	fields := strings.Fields(string(text))
	if len(fields) == 0 || !isHex(strings.ToLower(fields[0]), 128) {
		return "", errors.New("checksum file holds no SHA-512")
	}
	if len(fields) > 1 && strings.TrimLeft(fields[1], "*./") != file {
		return "", fmt.Errorf("checksum file is about %.80q", fields[1])
	}
	return strings.ToLower(fields[0]), nil
}

package images

import (
	"slices"
	"strings"
	"time"

	"agentvm/internal/host/platform"
)

// pin is an Alpine release whose checksum stands in this program, so that it may come from any mirror, over any transport.
type pin struct {
	version   string
	sha512    map[platform.Architecture]string // hex, of the files for all platforms
	supported string                           // the day on which the support of its branch ends (https://alpinelinux.org/releases/), as 2006-01-02
}

// pins are the pinned releases, the newest first: "alpine" means that one. Earlier versions of this program were pinned to the others, on
// which disks of VMs may lie. Alpine supports a branch for two years.
var pins = []pin{
	{"3.24.2", map[platform.Architecture]string{
		platform.RISCV64: "4a31df9a7408f2321fce42e54d12a75130edb04bc4feaf94354390fabfd8d7d71bbe3195cc70a19c4b2f0e54b603e9ff95d2509a0d390f2d0d468280fa3a38b4",
		platform.ARM64:   "c717aa68d67a354c7f46488eacb459c7a80951bcd7ea255f04a574aba1a6c5144f2117866e674f27fc92df0f05dd7685c1e6824b88ddd41994803d6fb025395c",
	}, "2028-05-01"},
	{"3.20.3", map[platform.Architecture]string{
		platform.RISCV64: "138ff1e6adb971024d6ef896c9d3f896644df02c972f5d09926e1b6b2a2d5ad2f50593c8644512282d76823bb353cbcd8dc32d30b0993d0e56228ce76d69c7f2",
		platform.ARM64:   "cb3ba1d3ac8b90cb85a4fe2a0e26a42af542f64ea86598d0409bc35493c4e561229f8d3142a23013c98b1a037495a8bf123ff977066230ab36a3a13dc92da9c4",
	}, "2026-04-01"},
}

// release returns the pinned file for an architecture.
func (p pin) release(a platform.Architecture) release { return release{p.version, a, p.sha512[a]} }

func pinnedRelease(version string, a platform.Architecture) (release, bool) {
	for _, p := range pins {
		if p.version == version {
			return p.release(a), true
		}
	}
	return release{}, false
}

// SupportEnd returns when Alpine's support of the image called name ends, and false for images of which this program does not know it.
func SupportEnd(name string) (time.Time, bool) {
	version, ok := strings.CutPrefix(name, AlpineName+":")
	for _, p := range pins {
		branch := strings.TrimPrefix(release{version: p.version}.branch(), "v")
		if ok && (version == branch || strings.HasPrefix(version, branch+".")) {
			end, err := time.Parse(time.DateOnly, p.supported)
			return end, err == nil
		}
	}
	return time.Time{}, false
}

// SameImage reports whether ref can mean the image that a store keeps, or kept for an earlier version of this program, as name.
func SameImage(ref, name string) bool {
	if ref == AlpineName {
		version, _ := strings.CutPrefix(name, AlpineName+":")
		return slices.ContainsFunc(pins, func(p pin) bool { return p.version == version })
	}
	parsed, err := parseReference(ref)
	return ref == name || err == nil && parsed.name == name
}

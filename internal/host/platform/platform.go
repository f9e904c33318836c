// Package platform names the processors that VMs can have, as OCI's images and Docker's --platform do.
package platform

import (
	"fmt"
	"strings"
)

// Architecture is a processor, as GOARCH and the OCI image specification name it. The empty one means that none was chosen.
type Architecture string

// The architectures of VMs.
const (
	RISCV64 Architecture = "riscv64"
	ARM64   Architecture = "arm64"
)

// Default is what runs when nothing says otherwise, also of an image that is for several. It is the faster one on every kind of host
// (docs/internals/arm64.md, "Which is faster").
const Default = RISCV64

// Supported returns the architectures of VMs, in the order in which they are preferred where an image exists for several.
func Supported() []Architecture { return []Architecture{RISCV64, ARM64} }

// Names returns the platforms of VMs for a message, as "linux/riscv64 or linux/arm64".
func Names() string {
	var names []string
	for _, a := range Supported() {
		names = append(names, a.Platform())
	}
	return strings.Join(names, " or ")
}

// Platform returns the platform, as "linux/arm64"; "" when none was chosen.
func (a Architecture) Platform() string {
	if a == "" {
		return ""
	}
	return "linux/" + string(a)
}

// Machine returns the name that uname -m and Linux distributions have for the architecture.
func (a Architecture) Machine() string {
	if a == ARM64 {
		return "aarch64"
	}
	return string(a)
}

// Variant returns what configurations and indexes of images say beside the architecture (OCI image specification, image-index.md): the
// version of Arm's architecture; empty for others.
func (a Architecture) Variant() string {
	if a == ARM64 {
		return "v8"
	}
	return ""
}

// Is reports whether a platform of an image (OCI image specification, image-index.md) is that of VMs of this architecture.
func (a Architecture) Is(os, architecture, variant string) bool {
	return os == "linux" && architecture == string(a) && (variant == "" || variant == a.Variant())
}

// ParseOptional parses a platform where one may be left out: "" is that none was chosen.
func ParseOptional(text string) (Architecture, error) {
	if text == "" {
		return "", nil
	}
	return Parse(text)
}

// Parse parses a platform as users write it: linux/arm64, linux/arm64/v8, arm64, or aarch64 as uname -m has it.
func Parse(text string) (Architecture, error) {
	system, rest, found := strings.Cut(strings.ToLower(text), "/")
	if !found {
		system, rest = "linux", system
	}
	name, variant, _ := strings.Cut(rest, "/")
	for _, a := range Supported() {
		if name == a.Machine() {
			name = string(a)
		}
		if a.Is(system, name, variant) {
			return a, nil
		}
	}
	why := "there is no such platform"
	switch {
	case system != "linux":
		why = "VMs run Linux only"
	case name == "amd64" || name == "x86_64" || name == "386" || name == "i386":
		why = "VMs do not run programs for x86 processors"
	case name == "arm":
		why = "VMs run Arm's 64-bit programs only"
	case name == string(ARM64):
		why = "VMs run version 8 of Arm's architecture"
	}
	return "", fmt.Errorf("platform %.80q: %s: write %s", text, why, Names())
}

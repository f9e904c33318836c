package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// writeSBOM writes what a program is made of, as CycloneDX: the modules that its build information names, Go, and the programs that it
// carries as data, the supervisor with modules of its own.
func (r *release) writeSBOM(p *program, supervisor []module) error {
	sum := sha256.Sum256(p.binary)
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{
		Timestamp: r.time.Format(time.RFC3339),
		Component: &cdx.Component{
			Type: cdx.ComponentTypeApplication, BOMRef: "agentvm", Name: "agentvm", Version: r.version,
			Description: p.os + "/" + p.arch, Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
			Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
		},
	}
	var components []cdx.Component
	for _, m := range p.info.Deps {
		c := goModule(m.Path, m.Version)
		// Go's h1 is the SHA-256 of a list of the module's files with theirs.
		h1, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:"))
		if err != nil || len(h1) != sha256.Size {
			return fmt.Errorf("%s: the sum %q of %s is not one of go.sum", p.name(), m.Sum, m.Path)
		}
		c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(h1)}}
		components = append(components, c)
	}
	goVersion := strings.TrimPrefix(p.info.GoVersion, "go")
	components = append(components, goModule("std", goVersion))
	others, err := carriedPrograms()
	if err != nil {
		return err
	}
	components = append(components, others...)
	inside := []cdx.Component{}
	for _, m := range append(supervisor, module{path: "std", version: goVersion}) {
		c := goModule(m.path, m.version)
		c.BOMRef = "agentvm-guest/" + c.BOMRef
		inside = append(inside, c)
	}
	components = append(components, cdx.Component{
		Type: cdx.ComponentTypeApplication, BOMRef: "agentvm-guest", Name: "agentvm-guest", Version: r.version, Components: &inside,
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
	})
	bom.Components = &components
	f, err := os.Create(r.artifact(p.os + "_" + p.arch + ".cdx.json"))
	if err != nil {
		return err
	}
	return errors.Join(cdx.NewBOMEncoder(f, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom), f.Close())
}

func goModule(path, version string) cdx.Component {
	purl := "pkg:golang/" + path + "@" + url.PathEscape(version)
	return cdx.Component{Type: cdx.ComponentTypeLibrary, BOMRef: purl, Name: path, Version: version, PackageURL: purl}
}

// carriedPrograms are the kernel and BusyBox, by the records of how they were built.
func carriedPrograms() ([]cdx.Component, error) {
	var kernel struct {
		Source struct{ Package, Version string }
	}
	var busybox struct {
		Package, Version string
		BuiltUsing       string `json:"built_using"`
		Archives         []struct{ Architecture string }
	}
	for file, record := range map[string]any{"internal/machine/kernel/riscv64.json": &kernel, "images/busybox/provenance.json": &busybox} {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(text, record); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	debian := func(kind cdx.ComponentType, name, version, arch, licence string) cdx.Component {
		purl := "pkg:deb/debian/" + name + "@" + url.QueryEscape(version) + "?arch=" + arch
		return cdx.Component{
			Type: kind, BOMRef: purl, Name: name, Version: version, PackageURL: purl, Licenses: &cdx.Licenses{{Expression: licence}},
		}
	}
	components := []cdx.Component{
		debian(cdx.ComponentTypeOS, kernel.Source.Package, kernel.Source.Version, "source", "GPL-2.0-only WITH Linux-syscall-note"),
	}
	for _, archive := range busybox.Archives {
		components = append(components, debian(cdx.ComponentTypeApplication, busybox.Package, busybox.Version, archive.Architecture, "GPL-2.0-only"))
	}
	_, glibc, ok := strings.Cut(busybox.BuiltUsing, "glibc ")
	if !ok {
		return nil, errors.New("images/busybox/provenance.json: built_using does not name glibc")
	}
	return append(components, debian(cdx.ComponentTypeLibrary, "glibc", glibc, "source", "LGPL-2.1-or-later")), nil
}

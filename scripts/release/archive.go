package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// writeArchive writes the archive of a platform: a zip for Windows, else a tar.gz. All of it is in one directory, named as the archive.
func (r *release) writeArchive(p *program, content map[string]entry) error {
	suffix, write := p.os+"_"+p.arch+".tar.gz", writeTarGz
	if p.os == "windows" {
		suffix, write = p.os+"_"+p.arch+".zip", writeZip
	}
	below := map[string]entry{}
	for name, e := range content {
		below["agentvm_"+r.version+"_"+p.os+"_"+p.arch+"/"+name] = e
	}
	f, err := os.Create(r.artifact(suffix))
	if err != nil {
		return err
	}
	return errors.Join(write(f, below, r.time), f.Close())
}

func writeTarGz(w io.Writer, content map[string]entry, at time.Time) error {
	z := gzip.NewWriter(w) // its best level is three times as slow, and gains a hundredth
	t := tar.NewWriter(z)
	for _, name := range withParents(content) {
		e, dir := content[name], strings.HasSuffix(name, "/")
		if err := addTar(t, name, e, dir, 0, at); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}

// addTar adds a file or a directory, with the user owner.
func addTar(t *tar.Writer, name string, e entry, dir bool, owner int, at time.Time) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(e.mode), Size: int64(len(e.content)), ModTime: at, Uid: owner, Gid: owner, Format: tar.FormatUSTAR}
	if dir {
		h.Typeflag = tar.TypeDir
		if e.mode == 0 {
			h.Mode = 0o755
		}
	}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	_, err := t.Write(e.content)
	return err
}

func writeZip(w io.Writer, content map[string]entry, at time.Time) error {
	z := zip.NewWriter(w)
	for _, name := range slices.Sorted(maps.Keys(content)) {
		e := content[name]
		h := &zip.FileHeader{Name: name, Method: zip.Deflate, Modified: at}
		h.SetMode(e.mode)
		f, err := z.CreateHeader(h)
		if err != nil {
			return err
		}
		if _, err := io.Copy(f, bytes.NewReader(e.content)); err != nil {
			return err
		}
	}
	return z.Close()
}

// withParents are the names of files with the directories above them, which end with a slash, in the order of an archive.
func withParents(content map[string]entry) []string {
	names := map[string]bool{}
	for name := range content {
		names[name] = true
		for dir := path.Dir(strings.TrimSuffix(name, "/")); dir != "."; dir = path.Dir(dir) {
			names[dir+"/"] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"agentvm/images"
	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/private"
)

// diskImage is the file with the name of the image on which the disk's files lie: they belong to no other, whatever Config.Image
// means to a later version of this program.
func (p paths) diskImage() string { return filepath.Join(p.dir, "disk.image") }

func (p paths) writeDiskImage(name string) error {
	if old, err := p.readDiskImage(); err == nil && old == name || name == "" {
		return nil
	}
	return atomicfile.Write(p.diskImage(), []byte(name+"\n"))
}

func (p paths) readDiskImage() (string, error) {
	text, err := private.ReadFile(p.diskImage(), maxState)
	return strings.TrimSuffix(string(text), "\n"), err
}

// DiskImage returns the name of the image that the files of a VM belong to; empty for a VM that has none or has never run.
func (s Store) DiskImage(name string) (string, error) {
	p, err := s.existing(name)
	if err != nil {
		return "", err
	}
	image, err := p.readDiskImage()
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return image, err
}

// bootImage returns what a VM with this configuration boots: the image that its disk belongs to, if it has one.
func (p paths) bootImage(c Config) (string, error) {
	if c.DiskSize < 0 || images.NamesFile(c.Image) { // a file is read again at each start
		return c.Image, nil
	}
	if _, err := os.Lstat(p.disk()); errors.Is(err, fs.ErrNotExist) {
		return c.Image, nil
	}
	name, err := p.readDiskImage()
	switch {
	case err == nil && name != "" && c.Image != "" && !images.SameImage(c.Image, name):
		return "", fmt.Errorf("image %s: the VM's files belong to image %s: give the VM another name, or remove it first", c.Image, name)
	case err == nil && name != "", err != nil && !errors.Is(err, fs.ErrNotExist):
		return name, err
	}
	if c.Image != "" && c.Image != images.AlpineName {
		return c.Image, nil
	}
	// The disk is of a version that did not write it down. What that version booted without a network was in its store.
	store, err := images.Open(c.StoreDir)
	if err != nil {
		return "", err
	}
	if _, err := store.Find(images.UnrecordedAlpine); err != nil && c.Image == "" {
		if _, err := store.Find(images.BuiltinName); err == nil {
			return images.BuiltinName, nil
		}
	}
	return images.UnrecordedAlpine, nil
}

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
	"agentvm/internal/host/platform"
	"agentvm/internal/host/private"
)

// diskImage is the file that says to which image the disk's files belong: they belong to no other, whatever Config.Image
// means to a later version of this program. Its lines are the image's name and, unless it is the one that there was once alone, its platform.
func (p paths) diskImage() string { return filepath.Join(p.dir, "disk.image") }

func (p paths) writeDiskImage(image images.Key) error {
	if old, err := p.readDiskImage(); err == nil && old == image || image.Name == "" {
		return nil
	}
	text := image.Name + "\n"
	if image.Architecture != platform.RISCV64 {
		text += image.Architecture.Platform() + "\n"
	}
	return atomicfile.Write(p.diskImage(), []byte(text))
}

func (p paths) readDiskImage() (image images.Key, err error) {
	text, err := private.ReadFile(p.diskImage(), maxState)
	if err != nil {
		return image, err
	}
	name, of, _ := strings.Cut(strings.TrimSuffix(string(text), "\n"), "\n")
	image = images.Key{Name: name, Architecture: platform.RISCV64}
	if of != "" {
		if image.Architecture, err = platform.Parse(of); err != nil {
			return images.Key{}, fmt.Errorf("%s: %w", p.diskImage(), err)
		}
	}
	return image, nil
}

// DiskImage returns the image that the files of a VM belong to, without a name for a VM that has none or has never run.
func (s Store) DiskImage(name string) (images.Key, error) {
	p, err := s.existing(name)
	if err != nil {
		return images.Key{}, err
	}
	image, err := p.readDiskImage()
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return image, err
}

// bootImage sets what a VM with this configuration boots: the image that its disk belongs to, if it has one.
func (p paths) bootImage(c *Config) error {
	if c.DiskSize < 0 || images.NamesFile(c.Image) { // a file is read again at each start
		return nil
	}
	if _, err := os.Lstat(p.disk()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	image, err := p.readDiskImage()
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && image.Name == "":
		return unrecordedImage(c)
	case err != nil:
		return err
	case c.Image != "" && !images.SameImage(c.Image, image.Name):
		return fmt.Errorf("image %s: the VM's files belong to image %s: give the VM another name, or remove it first", c.Image, image)
	case c.Platform != "" && c.Platform != image.Architecture.Platform():
		return fmt.Errorf("platform %s: the VM's files belong to image %s for %s: give the VM another name, or remove it first", c.Platform, image.Name, image.Architecture.Platform())
	}
	c.Image, c.Platform = image.Name, image.Architecture.Platform()
	return nil
}

// unrecordedImage sets the image of a disk that is of a version that did not write it down.
func unrecordedImage(c *Config) error {
	if c.Image != "" && c.Image != images.AlpineName {
		return nil
	}
	// What that version booted without a network was in its store.
	store, err := images.Open(c.StoreDir)
	if err != nil {
		return err
	}
	if _, err := store.Find(images.UnrecordedAlpine); err != nil && c.Image == "" {
		if _, err := store.Find(images.BuiltinName); err == nil {
			c.Image = images.BuiltinName
			return nil
		}
	}
	c.Image = images.UnrecordedAlpine
	return nil
}

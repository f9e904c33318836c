package imagestest

import (
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// WriteDockerArchive writes what docker save writes of an image that is called ref: for linux/riscv64, with a configuration, of layers
// that are tar archives, compressed or not.
func WriteDockerArchive(file, ref string, config v1.Config, layers ...string) error {
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: "riscv64", Config: config})
	if err != nil {
		return err
	}
	for _, path := range layers {
		layer, err := tarball.LayerFromFile(path)
		if err != nil {
			return err
		}
		if image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{CreatedBy: "COPY " + path}}); err != nil {
			return err
		}
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(file, tag, image)
}

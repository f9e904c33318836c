package images

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"agentvm/internal/private"
)

// Find returns the image that is called name in the store, without pulling it. The error wraps [ErrNotFound] when there is none.
func (s *Store) Find(name string) (*Image, error) {
	parsed, err := parseReference(name)
	if err != nil {
		return nil, err
	}
	return s.find(name, parsed)
}

// Tag gives an image of the store another name, which need not be free: what had it before loses it. The names of the sources (alpine,
// busybox) are taken.
func (s *Store) Tag(ctx context.Context, name, other string) (*Image, error) {
	parsed, err := parseReference(other)
	if err != nil {
		return nil, err
	}
	if parsed.transport != transportRegistry {
		return nil, fmt.Errorf("image name %q belongs to an image of agentvm's own: choose another", other)
	}
	if strings.Contains(parsed.name, "@") {
		return nil, fmt.Errorf("image name %q has a digest, which no name of ours can promise: give it a tag", other)
	}
	unlock, err := s.lockShared(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	image, err := s.Find(name)
	if err != nil {
		return nil, err
	}
	image.Name = parsed.name
	return image, s.save(image)
}

// Step is one step of the making of an image.
type Step struct {
	Created   time.Time
	CreatedBy string // the instruction
	Layer     string // digest of the layer that it made: "sha256:" and hex digits; empty for none
}

// History returns how an image of the store was made, as its configuration says, the first step first. Images of one archive have none.
func (s *Store) History(name string) ([]Step, error) {
	image, err := s.Find(name)
	if err != nil || len(image.Layers) == 0 {
		return nil, err
	}
	source, _ := parseDigest(image.SourceDigest)
	text, err := private.ReadFile(s.blobPath(source), maxConfig)
	if err != nil {
		return nil, fmt.Errorf("configuration of image %s: %w", image.Name, err)
	}
	config, err := v1.ParseConfigFile(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("configuration of image %s: %w", image.Name, err)
	}
	layers := image.Layers
	var list []Step
	for _, h := range config.History {
		step := Step{Created: h.Created.Time, CreatedBy: h.CreatedBy}
		if !h.EmptyLayer && len(layers) > 0 {
			step.Layer, layers = layers[0].Digest, layers[1:]
		}
		list = append(list, step)
	}
	return list, nil
}

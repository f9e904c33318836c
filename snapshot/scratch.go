package snapshot

import (
	"fmt"
	"os"
)

// Scratch is a place beside a snapshot for what is needed while that is written: the copy of a disk. It is left alone by whoever
// tidies up, in this process and others, as long as it is open, and removed by them when its process was killed.
type Scratch struct{ t *temporary }

// scratchSuffix is added to the name of the temporary file whose lock guards the place.
const scratchSuffix = ".disk"

// NewScratch finds a place beside path. Close gives it back.
func NewScratch(path string) (*Scratch, error) {
	t, err := newTemporary(path)
	if err != nil {
		return nil, fmt.Errorf("place for a copy beside %s: %w", path, err)
	}
	return &Scratch{t}, nil
}

// Path is the name of a file that is not there yet.
func (s *Scratch) Path() string { return s.t.name + scratchSuffix }

// Close removes the file, if there is one. A second time does nothing.
func (s *Scratch) Close() error {
	if s.t == nil {
		return nil
	}
	err := os.Remove(s.Path())
	s.t.discard()
	s.t = nil
	if os.IsNotExist(err) {
		return nil
	}
	return err
}

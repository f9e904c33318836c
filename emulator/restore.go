package emulator

import (
	"context"
	"errors"
)

// ErrShape is returned by Restore when the image's machine had other devices or another size of RAM than the
// configuration says.
var ErrShape = errors.New("the image is of a machine of another shape")

// Restore makes a machine that goes on where the image's was. cfg must name the same devices and the same size of RAM;
// their files are new: whatever was half done on the old ones is forgotten, and outstanding 9p requests fail with EIO.
// For the guest no time has passed. MAC and Generation may differ. The files in cfg belong to the machine from now on,
// also when Restore fails.
func (p *Program) Restore(ctx context.Context, cfg Config, i *Image) (*Machine, error) {
	return nil, errNotYet
}

// StopClock makes the guest's time stand still, between two slices, until StartClock.
func (m *Machine) StopClock() error { return m.callNothing("clock_stop") }

// StartClock lets the guest's time go on from where StopClock stopped it.
func (m *Machine) StartClock() error { return m.callNothing("clock_start") }

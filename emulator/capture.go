package emulator

import "errors"

var errNotYet = errors.New("not there yet")

// Capture makes an image of the machine, between two slices. It costs the pages that were written since the image that the
// machine was made from, or since the last Capture. The machine goes on, and shares the image's pages with the machines
// that are made from it.
func (m *Machine) Capture() (*Image, error) { return nil, errNotYet }

// Hash identifies what the guest can see of itself: registers, RAM and the state of its devices. Two machines that did the
// same have the same hash, a restored one and its original included. It is no cryptographic digest of the RAM.
func (m *Machine) Hash() ([32]byte, error) { return [32]byte{}, errNotYet }

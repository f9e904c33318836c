package machine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// htif is the host's end of the host-target interface that bare test programs use: the program stores a command in
// the word `tohost` and, where it expects an answer, waits for `fromhost`.
//
//	tohost: device << 56 | command << 48 | payload
//
// Device 0, command 0 is a system call: an odd payload ends the program with the code payload >> 1, an even one is
// the address of eight words, the number and the arguments, of which the first takes the result. Device 1, command 1
// prints the payload's lowest byte.
type htif struct {
	ram              []byte
	toHost, fromHost uint64 // guest physical; 0: the program has none
	console          io.Writer
}

// htifCall is what serve found.
type htifCall struct {
	served bool // there was a command
	ended  bool // it ended the program, with code
	code   uint64
}

// Numbers of the system calls, as Linux has them for this architecture.
const (
	htifWrite = 64
	htifExit  = 93
)

var errHTIF = errors.New("host-target interface")

func (h *htif) check() error {
	for _, address := range []uint64{h.toHost, h.fromHost} {
		if address != 0 && h.at(address, 8) == nil {
			return fmt.Errorf("%w: tohost or fromhost at %#x is outside RAM", errHTIF, address)
		}
	}
	return nil
}

// at is the guest's memory from an address on, nil unless all of it is RAM.
func (h *htif) at(address, length uint64) []byte {
	offset := address - RAMBase
	if offset >= uint64(len(h.ram)) || length > uint64(len(h.ram))-offset {
		return nil
	}
	return h.ram[offset : offset+length]
}

// serve looks for a command, does it and takes it away. A command that is not known is an error.
func (h *htif) serve() (htifCall, error) {
	if h.toHost == 0 {
		return htifCall{}, nil
	}
	word := h.at(h.toHost, 8)
	value := binary.LittleEndian.Uint64(word)
	if value == 0 {
		return htifCall{}, nil
	}
	clear(word)
	device, command, payload := value>>56, value>>48&0xff, value&(1<<48-1)
	switch {
	case value&1 != 0 && (value>>48 == 0 || value>>48 == 0xffff): // the exit code may be negative
		return htifCall{served: true, ended: true, code: uint64(int64(value) >> 1)}, nil
	case device == 0 && command == 0:
		return h.systemCall(payload)
	case device == 1 && command == 1:
		_, err := h.console.Write([]byte{byte(payload)})
		return htifCall{served: true}, err
	case device == 1 && command == 0:
		return htifCall{served: true}, nil // a read of the keyboard: there never is a key
	}
	return htifCall{}, fmt.Errorf("%w: no device %d with command %d (tohost was %#x)", errHTIF, device, command, value)
}

func (h *htif) systemCall(address uint64) (htifCall, error) {
	block := h.at(address, 64)
	if block == nil {
		return htifCall{}, fmt.Errorf("%w: system call at %#x, which is outside RAM", errHTIF, address)
	}
	argument := func(n int) uint64 { return binary.LittleEndian.Uint64(block[8*n:]) }
	switch number := argument(0); number {
	case htifExit:
		return htifCall{served: true, ended: true, code: argument(1)}, nil
	case htifWrite:
		if err := h.write(argument(2), argument(3)); err != nil {
			return htifCall{}, err
		}
		binary.LittleEndian.PutUint64(block, argument(3))
	default:
		return htifCall{}, fmt.Errorf("%w: system call %d is not known", errHTIF, number)
	}
	if h.fromHost != 0 {
		binary.LittleEndian.PutUint64(h.at(h.fromHost, 8), 1)
	}
	return htifCall{served: true}, nil
}

func (h *htif) write(address, length uint64) error {
	data := h.at(address, length)
	if data == nil && length != 0 {
		return fmt.Errorf("%w: write of %d bytes at %#x, which is outside RAM", errHTIF, length, address)
	}
	_, err := h.console.Write(data)
	return err
}

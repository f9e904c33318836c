package wasi

import (
	"encoding/binary"

	"github.com/tetratelabs/wazero/api"
)

var le = binary.LittleEndian

// maxIovecs bounds the buffers of one call, like IOV_MAX elsewhere.
const maxIovecs = 1024

// view returns n bytes of the guest's memory at ptr, or false when they are not all inside. For a module without any
// memory it panics inside wazero, which ends the call with an error.
func view(mod api.Module, ptr, n uint32) ([]byte, bool) {
	return mod.Memory().Read(ptr, n)
}

// putUint32 stores a result.
func putUint32(mod api.Module, ptr, v uint32) Errno {
	if !mod.Memory().WriteUint32Le(ptr, v) {
		return ErrnoFault
	}
	return ErrnoSuccess
}

// putUint64 stores a result.
func putUint64(mod api.Module, ptr uint32, v uint64) Errno {
	if !mod.Memory().WriteUint64Le(ptr, v) {
		return ErrnoFault
	}
	return ErrnoSuccess
}

// iovecs is a checked view of an array of {pointer, length} pairs (witx "iovec", "ciovec"), 8 bytes each.
type iovecs []byte

// iovecsAt returns the array of count pairs at ptr.
func iovecsAt(mem api.Memory, ptr, count uint32) (iovecs, Errno) {
	if count > maxIovecs {
		return nil, ErrnoInval
	}
	b, ok := mem.Read(ptr, count*8)
	if !ok {
		return nil, ErrnoFault
	}
	return b, ErrnoSuccess
}

// next splits the first buffer off.
func (v iovecs) next(mem api.Memory) ([]byte, iovecs, Errno) {
	b, ok := mem.Read(le.Uint32(v), le.Uint32(v[4:]))
	if !ok {
		return nil, nil, ErrnoFault
	}
	return b, v[8:], ErrnoSuccess
}

// check returns ErrnoFault when a buffer is not inside of memory, so that a call fails before it has an effect. A single
// buffer needs no check beforehand.
func (v iovecs) check(mem api.Memory) Errno {
	if len(v) <= 8 {
		return ErrnoSuccess
	}
	var errno Errno
	for len(v) > 0 && errno == ErrnoSuccess {
		_, v, errno = v.next(mem)
	}
	return errno
}

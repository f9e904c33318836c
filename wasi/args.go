package wasi

import (
	"context"

	"github.com/tetratelabs/wazero/api"
)

func argsGet(_ context.Context, s *System, mod api.Module, stack []uint64) Errno {
	return putStrings(mod, s.args, uint32(stack[0]), uint32(stack[1]))
}

func argsSizesGet(_ context.Context, s *System, mod api.Module, stack []uint64) Errno {
	return putSizes(mod, s.args, uint32(stack[0]), uint32(stack[1]))
}

func environGet(_ context.Context, s *System, mod api.Module, stack []uint64) Errno {
	return putStrings(mod, s.env, uint32(stack[0]), uint32(stack[1]))
}

func environSizesGet(_ context.Context, s *System, mod api.Module, stack []uint64) Errno {
	return putSizes(mod, s.env, uint32(stack[0]), uint32(stack[1]))
}

// stringsSize returns the bytes that a list takes, each string with its NUL.
func stringsSize(list []string) uint32 {
	n := 0
	for _, v := range list {
		n += len(v) + 1
	}
	return uint32(n)
}

// putSizes stores the number of strings and their size in bytes.
func putSizes(mod api.Module, list []string, countPtr, sizePtr uint32) Errno {
	if errno := putUint32(mod, countPtr, uint32(len(list))); errno != ErrnoSuccess {
		return errno
	}
	return putUint32(mod, sizePtr, stringsSize(list))
}

// putStrings stores the strings, NUL-terminated, at buf, and a pointer to each at ptrs.
func putStrings(mod api.Module, list []string, ptrs, buf uint32) Errno {
	pointers, ok := view(mod, ptrs, uint32(len(list))*4)
	if !ok {
		return ErrnoFault
	}
	b, ok := view(mod, buf, stringsSize(list))
	if !ok {
		return ErrnoFault
	}
	at := 0
	for i, v := range list {
		le.PutUint32(pointers[i*4:], buf+uint32(at))
		at += copy(b[at:], v)
		b[at] = 0
		at++
	}
	return ErrnoSuccess
}

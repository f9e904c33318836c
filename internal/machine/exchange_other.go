//go:build !amd64 && !arm64

package machine

import "unsafe"

const hasExchange128 = false

func exchange128(unsafe.Pointer, *[6]uint64) {}

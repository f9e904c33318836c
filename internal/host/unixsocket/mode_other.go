//go:build !unix

package unixsocket

func limitMode(uintptr) {}

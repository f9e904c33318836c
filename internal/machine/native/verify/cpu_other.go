//go:build !amd64

package verify

func hasSHA() bool { return false }

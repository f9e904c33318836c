//go:build !linux

package errno

import "syscall"

var numbers = func() map[syscall.Errno]Errno {
	m := make(map[syscall.Errno]Errno, len(hosts)+len(extra))
	for number, host := range hosts {
		m[host] = number
	}
	for host, number := range extra {
		m[host] = number
	}
	return m
}()

// Of returns Linux's number for an error number of the host, or 0 if Linux has none.
func Of(host syscall.Errno) Errno { return numbers[host] }

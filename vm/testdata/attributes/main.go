//go:build linux

// Attributes sets, lists, reads and removes extended attributes of a file, for a guest.
package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	path := os.Args[1]
	buf := make([]byte, 1000)
	fmt.Println(unix.Setxattr(path, "user.mine", []byte("guest"), 0), unix.Setxattr(path, "trusted.mine", nil, 0))
	n, err := unix.Listxattr(path, buf)
	fmt.Println(strings.Fields(strings.ReplaceAll(string(buf[:max(n, 0)]), "\x00", " ")), err)
	n, err = unix.Getxattr(path, "user.host", buf)
	fmt.Println(string(buf[:max(n, 0)]), err, unix.Removexattr(path, "user.host"))
}

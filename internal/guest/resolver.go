//go:build linux

package guest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// C libraries ignore what is beyond these limits (resolv.conf(5)).
const (
	maxServers     = 3
	maxDomains     = 6
	maxSearchBytes = 250
)

// resolverFile returns the content of resolv.conf.
func resolverFile(servers []netip.Addr, search []string) string {
	var b strings.Builder
	b.WriteString("# written by agentvm when the VM's network starts\n")
	if list := searchList(search); len(list) > 0 {
		b.WriteString("search " + strings.Join(list, " ") + "\n")
	}
	for _, server := range servers[:min(len(servers), maxServers)] {
		b.WriteString("nameserver " + server.String() + "\n")
	}
	return b.String()
}

// searchList returns search without duplicates, without words that are no names, and cut at the limits.
func searchList(search []string) (list []string) {
	size := 0
	for _, domain := range search {
		domain = strings.TrimSuffix(domain, ".")
		bad := domain == "" || strings.ContainsFunc(domain, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '#' || r == ';' })
		if bad || slices.Contains(list, domain) {
			continue
		}
		if size += len(domain) + 1; size > maxSearchBytes || len(list) == maxDomains {
			break
		}
		list = append(list, domain)
	}
	return list
}

// writeResolver replaces etc/resolv.conf under root. It replaces a link too, because the image's link leads to a file of a program
// that does not run here. A reader sees the old file or the new one. Where etc is another file system than root, as with a share,
// nothing is written, because that file is the host's.
func writeResolver(root string, servers []netip.Addr, search []string) error {
	if len(servers) == 0 {
		return nil // the image's own file may be of use
	}
	dir, own, err := openEtc(root)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(dir) }()
	if !own {
		return fmt.Errorf("/etc/resolv.conf is left alone: /etc is a share; it needs the line \"nameserver %v\"", servers[0])
	}
	if err := replaceFile(dir, "resolv.conf", []byte(resolverFile(servers, search))); err != nil {
		return fmt.Errorf("write /etc/resolv.conf: %w", err)
	}
	return nil
}

// openEtc opens etc under root, and makes it where it is missing. own says that it is on root's file system and so does not belong to the host.
func openEtc(root string) (dir int, own bool, err error) {
	etc := root + "/etc"
	if err := syscall.Mkdir(etc, 0o755); err != nil && err != syscall.EEXIST {
		return -1, false, fmt.Errorf("make %s: %w", etc, err)
	}
	dir, err = unix.Open(etc, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, false, fmt.Errorf("open %s: %w", etc, err)
	}
	return dir, sameFileSystem(dir, root), nil
}

func sameFileSystem(dir int, root string) bool {
	var a, b unix.Stat_t
	return unix.Fstat(dir, &a) == nil && unix.Stat(root, &b) == nil && a.Dev == b.Dev
}

// replaceFile writes a file, readable to all, through a temporary name in the same directory.
func replaceFile(dir int, name string, content []byte) error {
	temporary := "." + name + ".agentvm"
	const create = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(dir, temporary, create, 0o644)
	if err == unix.EEXIST { // left by a machine that was switched off before the rename
		_ = unix.Unlinkat(dir, temporary, 0)
		fd, err = unix.Openat(dir, temporary, create, 0o644)
	}
	if err != nil {
		return err
	}
	err = unix.Fchmod(fd, 0o644) // whatever the umask
	if err == nil {
		var n int
		if n, err = unix.Write(fd, content); err == nil && n < len(content) {
			err = unix.ENOSPC
		}
	}
	_ = unix.Close(fd)
	if err == nil {
		err = unix.Renameat(dir, temporary, dir, name)
	}
	if err != nil {
		_ = unix.Unlinkat(dir, temporary, 0)
	}
	return err
}

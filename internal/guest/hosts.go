//go:build linux

package guest

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// hostsMark ends the lines of /etc/hosts that are agentvm's. All others are the image's or the user's and stay.
	hostsMark = " # agentvm"
	// maxHostsFile bounds the file that is completed. Lists of blocked names are megabytes long.
	maxHostsFile = 8 << 20
)

// hostsFile returns what /etc/hosts is to have: old, without the lines of an earlier start, and lines for what it does not name, of the
// machine's own name, localhost, and added ("ADDRESS NAME").
func hostsFile(old, hostname string, own netip.Addr, added []string) string {
	var b strings.Builder
	named := map[string]bool{}
	for line := range strings.Lines(old) {
		if strings.HasSuffix(strings.TrimRight(line, "\n"), hostsMark) {
			continue
		}
		b.WriteString(line)
		text, _, _ := strings.Cut(line, "#")
		if fields := strings.Fields(text); len(fields) > 1 {
			for _, name := range fields[1:] {
				named[name] = true
			}
		}
	}
	if text := b.String(); text != "" && !strings.HasSuffix(text, "\n") {
		b.WriteByte('\n')
	}
	if !named["localhost"] {
		added = append([]string{"127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"}, added...)
	}
	if hostname != "" && hostname != "localhost" && !named[hostname] {
		if !own.IsValid() {
			own = netip.AddrFrom4([4]byte{127, 0, 1, 1})
		}
		names := hostname
		if short, _, dotted := strings.Cut(hostname, "."); dotted && short != "" {
			names += " " + short
		}
		added = append(added[:len(added):len(added)], own.String()+" "+names)
	}
	for _, line := range added {
		b.WriteString(line + hostsMark + "\n")
	}
	return b.String()
}

// writeHosts completes etc/hosts under root. Where etc is another file system than root, as with a share, nothing is written, because that
// file is the host's.
func writeHosts(root, hostname string, address netip.Addr, added []string) error {
	dir, own, err := openEtc(root)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(dir) }()
	if !own {
		return nil
	}
	old, err := readHosts(dir)
	if err != nil {
		return fmt.Errorf("/etc/hosts is left alone: %w", err)
	}
	if text := hostsFile(old, hostname, address, added); text != old {
		if err := replaceFile(dir, "hosts", []byte(text)); err != nil {
			return fmt.Errorf("write /etc/hosts: %w", err)
		}
	}
	return nil
}

// readHosts reads the file hosts in dir; one that is missing is empty.
func readHosts(dir int) (string, error) {
	fd, err := unix.Openat(dir, "hosts", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	f := os.NewFile(uintptr(fd), "hosts")
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > maxHostsFile {
		return "", errors.Join(err, fmt.Errorf("it is no file of at most %d bytes", maxHostsFile))
	}
	text, err := io.ReadAll(io.LimitReader(f, maxHostsFile))
	return string(text), err
}

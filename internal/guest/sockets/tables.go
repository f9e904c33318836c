//go:build linux

package sockets

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"agentvm/internal/guest/guestrpc"
)

// readTables reads the entries that keep accepts from the tables tcp, tcp6, udp and udp6 of a directory like /proc/net.
func readTables(dir string, keep func(entry) bool) (list []entry, err error) {
	for _, name := range []string{"tcp", "tcp6", "udp", "udp6"} {
		b, err := os.ReadFile(dir + "/" + name)
		if errors.Is(err, os.ErrNotExist) && strings.HasSuffix(name, "6") {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = appendTable(list, string(b), name[:3], keep)
	}
	return list, nil
}

// appendTable adds a table's lines: number, local and remote end, state, queues, timer, retransmissions, user, time-out, inode.
// Other lines, such as the heading, are skipped.
func appendTable(list []entry, table, network string, keep func(entry) bool) []entry {
	for line := range strings.Lines(table) {
		if e, ok := parseLine(strings.Fields(line), network); ok && keep(e) && len(list) < guestrpc.MaxSockets {
			list = append(list, e)
		}
	}
	return list
}

func parseLine(fields []string, network string) (e entry, ok bool) {
	if len(fields) < 10 {
		return e, false
	}
	state, err := strconv.ParseUint(fields[3], 16, 8)
	uid, err2 := strconv.ParseUint(fields[7], 10, 32)
	inode, err3 := strconv.ParseUint(fields[9], 10, 32)
	local, ok1 := parseEndpoint(fields[1])
	remote, ok2 := parseEndpoint(fields[2])
	if err != nil || err2 != nil || err3 != nil || !ok1 || !ok2 {
		return e, false
	}
	family := 4
	if len(fields[1]) > len("00000000:0000") {
		family = 6
	}
	socket := guestrpc.Socket{Family: family, Network: network, Local: local, Remote: remote, State: guestrpc.SocketState(state), UID: uint32(uid)}
	return entry{Socket: socket, inode: uint32(inode)}, true
}

// parseEndpoint reads ADDRESS:PORT in hexadecimal; the address is in words of 32 bits, each as the processor would print it.
func parseEndpoint(s string) (a netip.AddrPort, ok bool) {
	address, port, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(address)
	n, err2 := strconv.ParseUint(port, 16, 16)
	if err != nil || err2 != nil || len(b) != 4 && len(b) != 16 {
		return a, false
	}
	for word := b; len(word) > 0; word = word[4:] {
		binary.NativeEndian.PutUint32(word, binary.BigEndian.Uint32(word))
	}
	ip, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(ip.Unmap(), uint16(n)), true
}

//go:build linux && (riscv64 || arm64)

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

func sockets() (string, error) {
	for _, s := range []struct {
		name                   string
		domain, kind, protocol int
	}{
		{"unix", unix.AF_UNIX, unix.SOCK_SEQPACKET, 0},
		{"ipv4", unix.AF_INET, unix.SOCK_STREAM, 0},
		{"ipv6", unix.AF_INET6, unix.SOCK_DGRAM, 0},
		{"raw", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP},
		{"packet", unix.AF_PACKET, unix.SOCK_RAW, 0},
		{"vsock", unix.AF_VSOCK, unix.SOCK_STREAM, 0},
		{"sock_diag", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_SOCK_DIAG},
	} {
		fd, err := unix.Socket(s.domain, s.kind, s.protocol)
		if err != nil {
			return "", fmt.Errorf("%s: %w", s.name, err)
		}
		unix.Close(fd)
	}
	return "", nil
}

// sockDestroy ends a connection from outside of its program, which sees that: `ss -K`, and what a fork does to its copies.
func sockDestroy() (string, error) {
	if err := up("lo"); err != nil {
		return "", err
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	conn, err := net.Dial("tcp4", listener.Addr().String())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	const destroy = 21 // SOCK_DESTROY of linux/sock_diag.h
	answer, err := ask(unix.NETLINK_SOCK_DIAG, destroy, unix.NLM_F_ACK, diagRequest(conn))
	if err != nil {
		return "", err
	}
	if err := answer.errno(); err != nil {
		return "", err
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) {
		return "", fmt.Errorf("a destroyed connection reads %v", err)
	}
	return "", nil
}

func up(link string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq(link)
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}

// diagRequest is a struct inet_diag_req_v2 of linux/inet_diag.h for a TCP connection over IPv4, whatever its cookie.
func diagRequest(conn net.Conn) []byte {
	ends := [2]netip.AddrPort{
		netip.MustParseAddrPort(conn.LocalAddr().String()),
		netip.MustParseAddrPort(conn.RemoteAddr().String()),
	}
	request := make([]byte, 56)
	request[0], request[1] = unix.AF_INET, unix.IPPROTO_TCP
	for i, end := range ends {
		binary.BigEndian.PutUint16(request[8+2*i:], end.Port())
		copy(request[12+16*i:], end.Addr().AsSlice())
	}
	copy(request[48:], "\xff\xff\xff\xff\xff\xff\xff\xff")
	return request
}

func tun() (string, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	request, err := unix.NewIfreq("probe0")
	if err != nil {
		return "", err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return "", err
	}
	_, err = net.InterfaceByName("probe0")
	return "", err
}

// links makes one network device of each kind that containers use.
func links() (string, error) {
	for _, kind := range []string{"bridge", "veth", "dummy", "ifb", "wireguard"} {
		if err := addLink(kind, 0, nil); err != nil {
			return "", fmt.Errorf("%s: %w", kind, err)
		}
	}
	parent, err := net.InterfaceByName("probe-dummy")
	if err != nil {
		return "", err
	}
	const iptunRemote, greRemote = 3, 7 // IFLA_IPTUN_REMOTE and IFLA_GRE_REMOTE of linux/if_tunnel.h
	return "", errors.Join(
		addLink("macvlan", parent.Index, nil),
		addLink("vlan", parent.Index, attribute(unix.IFLA_VLAN_ID, []byte{7, 0})),
		addLink("vxlan", 0, append(attribute(unix.IFLA_VXLAN_ID, []byte{7, 0, 0, 0}), attribute(unix.IFLA_VXLAN_PORT, []byte{0x12, 0xb5})...)),
		addLink("ipip", 0, attribute(iptunRemote, []byte{192, 0, 2, 1})),
		addLink("gre", 0, attribute(greRemote, []byte{192, 0, 2, 1})),
		addLink("vrf", 0, attribute(unix.IFLA_VRF_TABLE, []byte{10, 0, 0, 0})))
}

// addLink makes a link of a kind, on another one unless its index is 0, with the kind's own attributes.
func addLink(kind string, parent int, data []byte) error {
	inner := attribute(unix.IFLA_INFO_KIND, []byte(kind))
	if data != nil {
		inner = append(inner, attribute(unix.IFLA_INFO_DATA, data)...)
	}
	body := append(make([]byte, unix.SizeofIfInfomsg), attribute(unix.IFLA_IFNAME, []byte("probe-"+kind+"\x00"))...)
	if parent != 0 {
		body = append(body, attribute(unix.IFLA_LINK, binary.LittleEndian.AppendUint32(nil, uint32(parent)))...)
	}
	answer, err := ask(unix.NETLINK_ROUTE, unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_ACK, append(body, attribute(unix.IFLA_LINKINFO, inner)...))
	if err != nil {
		return err
	}
	return answer.errno()
}

// qdiscs puts queueing disciplines on the dummy link: netem with a delay, then each of the others in its place.
func qdiscs() (string, error) {
	link, err := net.InterfaceByName("probe-dummy")
	if err != nil {
		return "", err
	}
	netem := make([]byte, 24) // struct tc_netem_qopt of linux/pkt_sched.h
	binary.LittleEndian.PutUint32(netem, 1000)
	binary.LittleEndian.PutUint32(netem[4:], 1000)
	htb := make([]byte, 20) // struct tc_htb_glob, in TCA_HTB_INIT
	binary.LittleEndian.PutUint32(htb, 3)
	binary.LittleEndian.PutUint32(htb[4:], 10)
	for _, q := range []struct {
		kind    string
		options []byte
	}{{"netem", netem}, {"htb", attribute(2, htb)}, {"fq_codel", nil}, {"ingress", nil}} {
		parent, handle := uint32(0xffffffff), uint32(0) // TC_H_ROOT
		if q.kind == "ingress" {
			parent, handle = 0xfffffff1, 0xffff0000 // TC_H_INGRESS
		}
		body := make([]byte, 4, 20) // struct tcmsg of linux/rtnetlink.h
		for _, v := range []uint32{uint32(link.Index), handle, parent, 0} {
			body = binary.LittleEndian.AppendUint32(body, v)
		}
		body = append(body, attribute(unix.TCA_KIND, []byte(q.kind+"\x00"))...)
		if q.options != nil {
			body = append(body, attribute(unix.TCA_OPTIONS, q.options)...)
		}
		answer, err := ask(unix.NETLINK_ROUTE, unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK, body)
		if err == nil {
			err = answer.errno()
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", q.kind, err)
		}
	}
	return "", nil
}

// legacyTables asks for the tables of iptables-legacy, and for the LOG target.
func legacyTables() (string, error) {
	for _, family := range []struct{ domain, level int }{{unix.AF_INET, unix.IPPROTO_IP}, {unix.AF_INET6, unix.IPPROTO_IPV6}} {
		fd, err := unix.Socket(family.domain, unix.SOCK_RAW, unix.IPPROTO_RAW)
		if err != nil {
			return "", err
		}
		defer unix.Close(fd)
		for _, table := range []string{"filter", "nat", "mangle"} {
			const getInfo = 64 // IPT_SO_GET_INFO; struct ipt_getinfo begins with the table's name
			info := make([]byte, 84)
			copy(info, table)
			size := uint32(len(info))
			_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(family.level), getInfo, uintptr(unsafe.Pointer(&info[0])), uintptr(unsafe.Pointer(&size)), 0)
			if errno != 0 {
				return "", fmt.Errorf("table %s: %w", table, errno)
			}
		}
	}
	targets, err := read("/proc/net/ip_tables_targets", nil)
	if err == nil && !slices.Contains(strings.Fields(targets), "LOG") {
		err = fmt.Errorf("no LOG among %q", targets)
	}
	return "", err
}

// nfTables asks for the generation of the rule set, which any nf_tables answers.
func nfTables() (string, error) {
	const subsystem = unix.NFNL_SUBSYS_NFTABLES << 8
	answer, err := ask(unix.NETLINK_NETFILTER, subsystem|unix.NFT_MSG_GETGEN, 0, make([]byte, 4))
	if err != nil {
		return "", err
	}
	if answer.kind != subsystem|unix.NFT_MSG_NEWGEN {
		return "", fmt.Errorf("answer of type %#x: %w", answer.kind, answer.errno())
	}
	return "", nil
}

// message is one netlink answer.
type message struct {
	kind uint16
	body []byte
}

// errno is the result a message of type NLMSG_ERROR carries; zero is success.
func (m message) errno() error {
	if m.kind != unix.NLMSG_ERROR {
		return fmt.Errorf("message of type %#x", m.kind)
	}
	if code := int32(binary.LittleEndian.Uint32(m.body)); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

func ask(protocol int, kind, flags uint16, body []byte) (message, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, protocol)
	if err != nil {
		return message{}, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	request := binary.LittleEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	request = binary.LittleEndian.AppendUint16(request, kind)
	request = binary.LittleEndian.AppendUint16(request, flags|unix.NLM_F_REQUEST)
	request = append(request, make([]byte, 8)...)
	if err := unix.Sendto(fd, append(request, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return message{}, os.NewSyscallError("sendto", err)
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return message{}, os.NewSyscallError("recvfrom", err)
	}
	if n < unix.SizeofNlMsghdr+4 {
		return message{}, fmt.Errorf("netlink answer of %d bytes", n)
	}
	return message{binary.LittleEndian.Uint16(answer[4:]), answer[unix.SizeofNlMsghdr:n]}, nil
}

// attribute is length, type and value, padded to four bytes.
func attribute(kind uint16, value []byte) []byte {
	a := binary.LittleEndian.AppendUint16(nil, uint16(4+len(value)))
	a = binary.LittleEndian.AppendUint16(a, kind)
	a = append(a, value...)
	return append(a, make([]byte, (4-len(a)%4)%4)...)
}

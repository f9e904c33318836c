//go:build linux

package netlink

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// message builds a netlink message.
func message(kind uint16, sequence uint32, body string) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, 0)
	b = binary.NativeEndian.AppendUint32(b, sequence)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = append(b, body...)
	return append(b, make([]byte, align(len(body))-len(body))...)
}

func number(n int32) string {
	return string(binary.NativeEndian.AppendUint32(nil, uint32(n)))
}

var errStop = errors.New("stop")

func TestAnswer(t *testing.T) {
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for _, tt := range []struct {
		name string
		give []byte
		seen string // bodies
		done bool
		fail error
	}{
		{"nothing", nil, "", false, nil},
		{"part of a dump", join(message(20, 5, "one"), message(20, 5, "two")), "one two", false, nil},
		{"end of a dump", join(message(20, 5, "one"), message(unix.NLMSG_DONE, 5, number(0))), "one", true, nil},
		{"end without a number", message(unix.NLMSG_DONE, 5, ""), "", true, nil},
		{"acknowledged", message(unix.NLMSG_ERROR, 5, number(0)), "", true, nil},
		{"refused", message(unix.NLMSG_ERROR, 5, number(-2)), "", true, syscall.ENOENT},
		{"dump that fails", join(message(20, 5, "one"), message(unix.NLMSG_DONE, 5, number(-12))), "one", true, syscall.ENOMEM},
		{"left over from before", join(message(20, 4, "old"), message(unix.NLMSG_ERROR, 4, number(-1)), message(20, 5, "new")), "new", false, nil},
		{"no message", join(message(unix.NLMSG_NOOP, 5, ""), message(20, 5, "one")), "one", false, nil},
		{"cut in the header", message(20, 5, "one")[:12], "", true, errShort},
		{"cut in the body", message(20, 5, "four")[:18], "", true, errShort},
		{"length of nothing", make([]byte, 16), "", true, errShort},
		{"caller stops", join(message(20, 5, "stop"), message(20, 5, "two")), "stop", true, errStop},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var seen []string
			n := 0
			done, err := answer(tt.give, 5, func(m Message) error {
				seen = append(seen, string(m.Body))
				if string(m.Body) == "stop" {
					return errStop
				}
				return nil
			}, &n)
			if strings.Join(seen, " ") != tt.seen || done != tt.done || !errors.Is(err, tt.fail) || tt.fail == nil && err != nil {
				t.Errorf("got %q, %v, %v", seen, done, err)
			}
		})
	}
}

func TestAttribute(t *testing.T) {
	b := AppendAttribute(AppendAttribute(AppendAttribute(nil, 1, nil), 2, []byte("abc")), 3, []byte("defg"))
	if len(b) != 4+8+8 {
		t.Errorf("%d bytes", len(b))
	}
	for kind, want := range map[uint16]string{1: "", 2: "abc", 3: "defg", 4: ""} {
		if got := Attribute(b, kind); string(got) != want {
			t.Errorf("attribute %d: %q", kind, got)
		}
	}
	if got := Attribute(b[:len(b)-1], 3); got != nil {
		t.Errorf("cut off: %q", got)
	}
	if got := Attribute([]byte{0, 0, 3, 0, 1, 1, 1, 1}, 3); got != nil {
		t.Errorf("length 0: %q", got)
	}
}

// recordedLink is the beginning of Linux 6.18's answer on amd64 for lo.
const recordedLink = "00000403010000004900010000000000" + "070003006c6f0000" + "08000d00e8030000" + "0500100000000000" +
	"0500110000000000" + "0500430001000000" + "0800040000000100" + "0800320000000000"

func TestParseLink(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("recorded on a little-endian processor")
	}
	b, err := hex.DecodeString(recordedLink)
	if err != nil {
		t.Fatal(err)
	}
	l, err := parseLink(b)
	if err != nil || l != (Link{Index: 1, MTU: 65536}) {
		t.Errorf("got %+v, %v", l, err)
	}
	if _, err := parseLink(b[:15]); !errors.Is(err, errShort) {
		t.Errorf("cut off: %v", err)
	}
}

// TestLoopback asks the real kernel.
func TestLoopback(t *testing.T) {
	want, err := net.InterfaceByName("lo")
	if err != nil {
		t.Skip("no loopback interface here")
	}
	r, err := DialRouter()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if l, err := r.Link("lo"); err != nil || int(l.Index) != want.Index || l.MTU != want.MTU {
		t.Errorf("got %+v, %v, want %+v", l, err, want)
	}
	if l, err := r.Link("none4711"); !errors.Is(err, syscall.ENODEV) || !strings.Contains(err.Error(), "none4711") {
		t.Errorf("got %+v, %v", l, err)
	}
	if l, err := r.Link("lo"); err != nil || int(l.Index) != want.Index {
		t.Errorf("after an error: %+v, %v", l, err)
	}
}

// FuzzAnswer reads arbitrary bytes as the kernel's answer.
func FuzzAnswer(f *testing.F) {
	f.Add(message(20, 5, "one"))
	f.Add(append(message(20, 5, "four"), message(unix.NLMSG_DONE, 5, number(0))...))
	if b, err := hex.DecodeString(recordedLink); err == nil {
		f.Add(message(unix.RTM_NEWLINK, 5, string(b)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		_, _ = answer(b, 5, func(m Message) error {
			for kind := range uint16(8) {
				if v := Attribute(m.Body, kind); len(v) > len(m.Body) {
					t.Fatal("an attribute is longer than what it is in")
				}
			}
			_, _ = parseLink(m.Body)
			return nil
		}, &n)
		if n > len(b)/unix.NLMSG_HDRLEN {
			t.Errorf("%d messages in %d bytes", n, len(b))
		}
	})
}

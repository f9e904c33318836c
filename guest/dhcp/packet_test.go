package dhcp

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// options builds a reply with options of the test's.
func options(more ...byte) []byte {
	b := make([]byte, fixedSize)
	b[0], b[1], b[2] = 2, 1, 6
	binary.BigEndian.PutUint32(b[4:], 7)
	copy(b[16:], []byte{10, 0, 0, 2})
	copy(b[28:], testMAC[:])
	b = binary.BigEndian.AppendUint32(b, magic)
	return append(append(b, optionType, 1, typeAck, optionServer, 4, 10, 0, 0, 1), more...)
}

var maskOption = []byte{optionMask, 4, 255, 255, 255, 0}

func TestParseReply(t *testing.T) {
	changed := func(at int, value byte) []byte {
		b := options(maskOption...)
		b[at] = value
		return b
	}
	for _, tt := range []struct {
		name string
		give []byte
		ok   bool
	}{
		{"least", options(maskOption...), true},
		{"padded", options(append([]byte{0, 0, 0}, maskOption...)...), true},
		{"ended", options(append(slices.Clone(maskOption), optionEnd, 99, 99)...), true},
		{"empty", nil, false},
		{"without options", options()[:fixedSize], false},
		{"request", changed(0, 1), false},
		{"other transaction", changed(4, 1), false},
		{"other client", changed(30, 1), false},
		{"other hardware", changed(1, 6), false},
		{"other length of address", changed(2, 16), false},
		{"no magic", changed(fixedSize, 0), false},
		{"cut in a length", options(optionMask), false},
		{"cut in a value", options(optionMask, 4, 255), false},
		{"type of no length", changed(fixedSize+5, 0), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := parseReply(tt.give, 7, testMAC); (err == nil) != tt.ok {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestLease(t *testing.T) {
	for _, tt := range []struct {
		name string
		give []byte
		want string // address, or the error's beginning
	}{
		{"usual", maskOption, "10.0.0.2/24"},
		{"longest mask", []byte{optionMask, 4, 255, 255, 255, 255}, "10.0.0.2/32"},
		{"no mask", nil, "the reply has no usable"},
		{"short mask", []byte{optionMask, 3, 255, 255, 255}, "the reply has no usable"},
		{"mask with a gap", []byte{optionMask, 4, 255, 0, 255, 0}, "the reply has no usable"},
		{"mask of nothing", []byte{optionMask, 4, 0, 0, 0, 0}, "the reply has no usable"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := parseReply(options(tt.give...), 7, testMAC)
			if err != nil {
				t.Fatal(err)
			}
			l, err := r.lease()
			got := l.Address.String()
			if err != nil {
				got = err.Error()
			}
			if !strings.HasPrefix(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestTimes(t *testing.T) {
	seconds := func(option byte, s uint32) []byte {
		return binary.BigEndian.AppendUint32([]byte{option, 4}, s)
	}
	for _, tt := range []struct {
		name                    string
		give                    []byte
		duration, renew, rebind time.Duration
	}{
		{"a day", seconds(optionLease, 86400), 24 * time.Hour, 12 * time.Hour, 21 * time.Hour},
		{"not told", nil, Forever, Forever, Forever},
		{"for ever", seconds(optionLease, 1<<32-1), Forever, Forever, Forever},
		{"no time", seconds(optionLease, 0), time.Minute, 30 * time.Second, 52*time.Second + 500*time.Millisecond},
		{
			"all told", slices.Concat(seconds(optionLease, 1000), seconds(optionRenewal, 100), seconds(optionRebinding, 200)),
			1000 * time.Second, 100 * time.Second, 200 * time.Second,
		},
		{
			"wrong order", slices.Concat(seconds(optionLease, 1000), seconds(optionRenewal, 5000), seconds(optionRebinding, 2)),
			1000 * time.Second, 1000 * time.Second, 1000 * time.Second,
		},
		{
			"at once", slices.Concat(seconds(optionLease, 1000), seconds(optionRenewal, 0)),
			1000 * time.Second, 30 * time.Second, 875 * time.Second,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := parseReply(options(append(slices.Clone(maskOption), tt.give...)...), 7, testMAC)
			if err != nil {
				t.Fatal(err)
			}
			l, err := r.lease()
			if err != nil || l.Duration != tt.duration || l.Renew != tt.renew || l.Rebind != tt.rebind {
				t.Errorf("got %v, %v, %v, %v", l.Duration, l.Renew, l.Rebind, err)
			}
		})
	}
}

func TestSearch(t *testing.T) {
	for _, tt := range []struct {
		name string
		give string
		want []string
	}{
		{"one", "\x01a\x02bc\x00", []string{"a.bc"}},
		{"pointer", "\x01a\x02bc\x00\x01x\xc0\x02\x01y\xc0\x06", []string{"a.bc", "x.bc", "y.x.bc"}},
		{"pointer to itself", "\x01a\xc0\x02", nil},
		{"pointer ahead", "\x01a\xc0\x06\x00\x01b\x00", nil},
		{"loop", "\x01a\x00\x01b\xc0\x03", []string{"a"}},
		{"cut off", "\x01a\x00\x05b", []string{"a"}},
		{"cut pointer", "\x01a\x00\x01b\xc0", []string{"a"}},
		{"unknown label", "\x41a\x00", nil},
		{"what would end a line", "\x03a\nb\x00\x01c\x00", []string{"c"}},
		{"root", "\x00\x01c\x00", []string{"c"}},
		{"too many", strings.Repeat("\x01a\x00", 100), slices.Repeat([]string{"a"}, maxList)},
		{"too long", strings.Repeat("\x3f"+strings.Repeat("a", 63), 4) + "\x00", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := parseSearch([]byte(tt.give)); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestDomain: the name of the network stands in for a list to search.
func TestDomain(t *testing.T) {
	r, err := parseReply(options(append([]byte{optionDomain, 10}, "example.\x00\x00"...)...), 7, testMAC)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.domains(); !slices.Equal(got, []string{"example"}) {
		t.Errorf("got %q", got)
	}
}

// TestLongOption: an option that is continued (RFC 3396).
func TestLongOption(t *testing.T) {
	r, err := parseReply(options(optionSearch, 2, 1, 'a', optionSearch, 3, 1, 'b', 0), 7, testMAC)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.domains(); !slices.Equal(got, []string{"a.b"}) {
		t.Errorf("got %q", got)
	}
}

// TestLongestOption: lengths whose sum with the header's two bytes does not fit a byte.
func TestLongestOption(t *testing.T) {
	for _, length := range []int{253, 254, 255} {
		b := append([]byte{optionDomain, byte(length)}, bytes.Repeat([]byte{'a'}, length)...)
		r, err := parseReply(options(append(b, optionMTU, 2, 5, 0xdc)...), 7, testMAC)
		if err != nil {
			t.Fatal(err)
		}
		if got, mtu := len(r.options[optionDomain]), r.options[optionMTU]; got != length || !bytes.Equal(mtu, []byte{5, 0xdc}) {
			t.Errorf("an option of %d bytes: got %d, and the next is %v", length, got, mtu)
		}
	}
}

// FuzzReply reads anything as a reply. What this package takes for one, with its lease, the library has to read alike.
func FuzzReply(f *testing.F) {
	f.Add(options(maskOption...))
	f.Add(options(append(slices.Clone(maskOption), optionSearch, 9, 1, 'a', 0, 1, 'b', 0xc0, 0, 0xc0, 3, optionEnd)...))
	discover, err := dhcpv4.FromBytes(message{kind: typeDiscover, xid: 7, mac: testMAC}.encode())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(respond(f, discover, dhcpv4.MessageTypeOffer))
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		r, err := parseReply(b, 7, testMAC)
		if err != nil {
			return
		}
		l, err := r.lease()
		if !bytes.Equal(before, b) {
			t.Fatal("the packet was changed")
		}
		if err != nil {
			return
		}
		if !l.Address.IsValid() || l.Renew > l.Rebind || l.Rebind > l.Duration || l.Renew < 30*time.Second {
			t.Errorf("lease %+v", l)
		}
		for _, name := range l.Search {
			if !plainName(name) {
				t.Errorf("domain %q", name)
			}
		}
		other, err := dhcpv4.FromBytes(b)
		if err != nil {
			return // it is stricter about the field "options"
		}
		if got := l.Address.Addr().String(); other.YourIPAddr.String() != got || len(other.DNS()) > 0 && len(l.DNS) > 0 && other.DNS()[0].String() != l.DNS[0].String() {
			t.Errorf("got %+v, the library %s", l, other.Summary())
		}
	})
}

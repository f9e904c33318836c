package vm

import (
	"fmt"
	"strconv"
	"strings"
)

// PortRange is the ports from First to Last, both included. First is at least 1 and at most Last.
type PortRange struct {
	First, Last uint16
}

// ParsePortRange reads one port, "8080", or several, "3000-3999".
func ParsePortRange(text string) (PortRange, error) {
	first, last, several := strings.Cut(text, "-")
	if !several {
		last = first
	}
	var r PortRange
	var ok, ok2 bool
	r.First, ok = parsePort(first)
	r.Last, ok2 = parsePort(last)
	switch {
	case !ok || !ok2:
		return PortRange{}, fmt.Errorf("ports %.40q: want one from 1 to 65535, as 8080, or a range, as 3000-3999", text)
	case r.First > r.Last:
		return PortRange{}, fmt.Errorf("ports %.40q: the first is above the last", text)
	}
	return r, nil
}

// parsePort reads a port from 1 to 65535 in the one way to write it.
func parsePort(text string) (uint16, bool) {
	if text == "" || len(text) > 5 || text[0] == '0' || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 16)
	return uint16(n), err == nil
}

// String is the form that ParsePortRange reads.
func (r PortRange) String() string {
	if r.First == r.Last {
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// MarshalText is String.
func (r PortRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText is ParsePortRange.
func (r *PortRange) UnmarshalText(text []byte) (err error) {
	*r, err = ParsePortRange(string(text))
	return err
}

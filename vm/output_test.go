package vm

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCollector(t *testing.T) {
	tests := []struct {
		name   string
		limit  int
		writes []string
		want   string
		gap    Truncation
	}{
		{"nothing", 10, nil, "", Truncation{}},
		{"less than the limit", 10, []string{"abc", "def"}, "abcdef", Truncation{}},
		{"exactly the limit", 10, []string{"01234", "56789"}, "0123456789", Truncation{}},
		{"one byte more", 10, []string{"0123456789a"}, "012346789a", Truncation{5, 1}},
		{"odd limit", 5, []string{"abcdefgh"}, "abcgh", Truncation{3, 3}},
		{"in one write", 4, []string{strings.Repeat("x", 1000) + "yz"}, "xxyz", Truncation{2, 998}},
		{"byte by byte", 6, strings.Split("abcdefghijklm", ""), "abcklm", Truncation{3, 7}},
		{"writes across the ring's end", 8, []string{"0123", "45", "678", "9ab", "cdef"}, "0123cdef", Truncation{4, 8}},
		{"limit of one", 1, []string{"abc"}, "a", Truncation{1, 2}},
		{"no limit", -1, []string{strings.Repeat("ab", 40)}, strings.Repeat("ab", 40), Truncation{}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := newCollector(test.limit)
			for _, w := range test.writes {
				if n, err := c.Write([]byte(w)); n != len(w) || err != nil {
					t.Fatalf("Write = %d, %v", n, err)
				}
			}
			kept, gap := c.take()
			if diff := cmp.Diff(test.want, string(kept)); diff != "" {
				t.Errorf("kept (-want +got):\n%s", diff)
			}
			if gap != test.gap {
				t.Errorf("gap = %+v, want %+v", gap, test.gap)
			}
		})
	}
}

func FuzzCollector(f *testing.F) {
	f.Add(uint8(6), uint8(3), []byte("abcdefghijklm"))
	f.Add(uint8(1), uint8(1), []byte("ab"))
	f.Fuzz(func(t *testing.T, limit, step uint8, data []byte) {
		if limit == 0 || step == 0 {
			return
		}
		c := newCollector(int(limit))
		for rest := data; len(rest) > 0; {
			n := min(int(step), len(rest))
			_, _ = c.Write(rest[:n])
			rest = rest[n:]
		}
		kept, gap := c.take()
		if len(kept)+int(gap.Dropped) != len(data) || len(kept) > int(limit) {
			t.Fatalf("kept %d and dropped %d of %d, limit %d", len(kept), gap.Dropped, len(data), limit)
		}
		if gap.Dropped == 0 {
			gap.Offset = len(kept)
		}
		want := string(data[:gap.Offset]) + string(data[gap.Offset+int(gap.Dropped):])
		if string(kept) != want {
			t.Fatalf("kept %q, want %q", kept, want)
		}
	})
}

package headtail

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBuffer(t *testing.T) {
	tests := []struct {
		name   string
		limit  int
		writes []string
		want   string
		gap    Gap
	}{
		{"nothing", 10, nil, "", Gap{}},
		{"less than the limit", 10, []string{"abc", "def"}, "abcdef", Gap{}},
		{"exactly the limit", 10, []string{"01234", "56789"}, "0123456789", Gap{}},
		{"one byte more", 10, []string{"0123456789a"}, "012346789a", Gap{5, 1}},
		{"odd limit", 5, []string{"abcdefgh"}, "abcgh", Gap{3, 3}},
		{"in one write", 4, []string{strings.Repeat("x", 1000) + "yz"}, "xxyz", Gap{2, 998}},
		{"byte by byte", 6, strings.Split("abcdefghijklm", ""), "abcklm", Gap{3, 7}},
		{"writes across the ring's end", 8, []string{"0123", "45", "678", "9ab", "cdef"}, "0123cdef", Gap{4, 8}},
		{"in pieces", 4, []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}, "0189", Gap{2, 6}},
		{"any negative limit", -7, []string{"0123", "4567"}, "01234567", Gap{}},
		{"limit of one", 1, []string{"abc"}, "a", Gap{1, 2}},
		{"no limit", -1, []string{strings.Repeat("ab", 40)}, strings.Repeat("ab", 40), Gap{}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := New(test.limit)
			for _, w := range test.writes {
				if n, err := c.Write([]byte(w)); n != len(w) || err != nil {
					t.Fatalf("Write = %d, %v", n, err)
				}
			}
			kept, gap := c.Take()
			if diff := cmp.Diff(test.want, string(kept)); diff != "" {
				t.Errorf("kept (-want +got):\n%s", diff)
			}
			if gap != test.gap {
				t.Errorf("gap = %+v, want %+v", gap, test.gap)
			}
		})
	}
}

func FuzzBuffer(f *testing.F) {
	f.Add(uint8(6), uint8(3), []byte("abcdefghijklm"))
	f.Add(uint8(1), uint8(1), []byte("ab"))
	f.Fuzz(func(t *testing.T, limit, step uint8, data []byte) {
		if limit == 0 || step == 0 {
			return
		}
		c := New(int(limit))
		for rest := data; len(rest) > 0; {
			n := min(int(step), len(rest))
			_, _ = c.Write(rest[:n])
			rest = rest[n:]
		}
		kept, gap := c.Take()
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

func TestBufferIsBounded(t *testing.T) {
	const limit = 1 << 10
	b := New(limit)
	for range 1000 {
		_, _ = b.Write(make([]byte, 100))
		if held := len(b.head) + len(b.tail); held > limit {
			t.Fatalf("%d bytes are held with a limit of %d", held, limit)
		}
	}
}

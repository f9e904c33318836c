package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentvm/vm"
)

func TestKeeper(t *testing.T) {
	for _, test := range []struct {
		name   string
		limit  int
		writes []string
		want   string
		cut    vm.Truncation
	}{
		{"nothing", 4, nil, "", vm.Truncation{}},
		{"fits", 10, []string{"0123", "456789"}, "0123456789", vm.Truncation{}},
		{"one byte too many", 10, []string{"0123456789x"}, "012346789x", vm.Truncation{Offset: 5, Dropped: 1}},
		{"in pieces", 4, []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}, "0189", vm.Truncation{Offset: 2, Dropped: 6}},
		{"odd limit", 5, []string{"012345", "6789"}, "01289", vm.Truncation{Offset: 3, Dropped: 5}},
		{"one byte", 1, []string{"0123"}, "0", vm.Truncation{Offset: 1, Dropped: 3}},
		{"all", -1, []string{"0123", "4567"}, "01234567", vm.Truncation{}},
		{"all, spelt differently", -7, []string{"0123", "4567"}, "01234567", vm.Truncation{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			k := newKeeper(test.limit)
			for _, text := range test.writes {
				if n, err := k.Write([]byte(text)); n != len(text) || err != nil {
					t.Fatalf("Write: %d, %v", n, err)
				}
			}
			got, cut := k.take()
			if string(got) != test.want {
				t.Errorf("kept %q, want %q", got, test.want)
			}
			if diff := cmp.Diff(test.cut, cut); diff != "" {
				t.Errorf("missing (-want +got):\n%s", diff)
			}
		})
	}
}

func TestKeeperIsBounded(t *testing.T) {
	const limit = 1 << 10
	k := newKeeper(limit)
	for range 1000 {
		_, _ = k.Write(make([]byte, 100))
		if held := len(k.head) + len(k.tail); held > 3*limit/2 {
			t.Fatalf("%d bytes are held with a limit of %d", held, limit)
		}
	}
}

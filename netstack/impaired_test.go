package netstack_test

import (
	"testing"
	"time"

	"agentvm/netstack"
	"agentvm/netstack/netstacktest"
)

// TestImpairedLinks: every byte arrives once and in order, whatever the link does to frames.
func TestImpairedLinks(t *testing.T) {
	links := map[string]netstacktest.Impairment{
		"loss":       {Loss: 0.02, Seed: 1},
		"duplicates": {Duplicate: 0.2, Seed: 2},
		"reordering": {Reorder: 0.1, Seed: 3},
		"delay":      {Delay: time.Millisecond},
		"everything": {Loss: 0.01, Duplicate: 0.05, Reorder: 0.05, Delay: 500 * time.Microsecond, Seed: 4},
	}
	for name, link := range links {
		t.Run(name, func(t *testing.T) {
			here, guest, n := connected(t, netstack.Config{DisableIPv6: true}, netstacktest.Config{DisableIPv6: true, Impair: link}, server)
			exchangeBytes(t, here, guest, 512<<10)
			if s := n.Stats(); name == "loss" && s.Retransmits == 0 {
				t.Error("nothing was sent again on a link that loses frames")
			}
		})
	}
}

// TestImpairedOffload does the same to frames of 64 KiB with partial checksums.
func TestImpairedOffload(t *testing.T) {
	link := netstacktest.Impairment{Loss: 0.02, Duplicate: 0.05, Reorder: 0.05, Seed: 5}
	here, guest, _ := connected(t, netstack.Config{DisableIPv6: true, Header: true},
		netstacktest.Config{DisableIPv6: true, Header: true, Impair: link}, server)
	exchangeBytes(t, here, guest, 512<<10)
}

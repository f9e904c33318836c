package vm_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"agentvm/vm"
)

// TestSyncClock is the clock's part of row R3: within 500 ms of the host's clock.
func TestSyncClock(t *testing.T) {
	v := ownVM(t, func(c *vm.Config) { c.Network.Disabled = true })
	wantOutput(t, v, "date -s @1000000000 >/dev/null; date +%Y", "2001\n")
	if err := v.SyncClock(limited(t)); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	r := mustRun(t, v, vm.Command{Line: "date +%s"})
	after := time.Now()
	seconds, err := strconv.ParseInt(strings.TrimSpace(string(r.Stdout)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	// date cuts to whole seconds.
	if guest := time.Unix(seconds, 0); guest.Before(before.Add(-1500*time.Millisecond)) || guest.After(after.Add(500*time.Millisecond)) {
		t.Errorf("the guest's clock says %v between %v and %v", guest, before, after)
	}
}

package settings

import (
	"testing"

	"agentvm/egress"
)

// TestRules fails when a kind of rule has no row in the table.
func TestRules(t *testing.T) {
	lists := new(egress.Policy).Lists()
	rules := Rules()
	if len(rules) != len(lists) {
		t.Fatalf("%d kinds of rules and %d settings", len(lists), len(rules))
	}
	for i, s := range rules {
		if s.Flag != lists[i].Name || s.Usage == "" || s.Kind != Texts || s.FlagOnly {
			t.Errorf("%s: %+v", lists[i].Name, s)
		}
	}
}

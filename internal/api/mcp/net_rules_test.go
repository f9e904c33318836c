package mcp

import (
	"testing"

	"agentvm/egress"
	"agentvm/internal/settings"
)

// TestNetOutputHasEachKindOfRule fails when the tool says nothing of a kind of rule.
func TestNetOutputHasEachKindOfRule(t *testing.T) {
	fields := settings.RuleFields(new(netOutput))
	for _, list := range new(egress.Policy).Lists() {
		if fields[list.Name] == nil {
			t.Errorf(`netOutput has no field with the tag rules:"%s"`, list.Name)
		}
	}
}

package serve

import (
	"encoding/json"
	"strings"
	"testing"

	"agentvm/egress"
	"agentvm/internal/settings"
)

// TestPolicyHasEachKindOfRule fails when clients cannot have a kind of rule, or it has another name in a policy that is kept.
func TestPolicyHasEachKindOfRule(t *testing.T) {
	for _, list := range new(egress.Policy).Lists() {
		var p Policy
		field := settings.RuleFields(&p)[list.Name]
		if field == nil {
			t.Errorf(`Policy has no field with the tag rules:"%s"`, list.Name)
			continue
		}
		*field = []string{"a.example"}
		kept := egress.Policy{}
		for _, l := range kept.Lists() {
			if l.Name == list.Name {
				*l.Rules = append(*l.Rules, egress.Rule{})
			}
		}
		for _, v := range []any{p, kept} {
			if text, err := json.Marshal(v); err != nil || !strings.Contains(string(text), `"`+list.JSON+`":[`) {
				t.Errorf("%s: %s, %v", list.Name, text, err)
			}
		}
	}
}

package client_test

import (
	"context"
	"errors"
	"testing"

	"agentvm/client"
	"agentvm/egress"
)

// otherVersions is a VM whose daemon calls policies something else.
type otherVersions struct{ client.AnyVM }

func (otherVersions) Policy(context.Context) (egress.Policy, error) { return egress.Policy{}, nil }

func (otherVersions) ReplacePolicy(context.Context, string, egress.Policy) (int, error) {
	return 0, egress.ErrPolicyChanged
}

// TestChangePolicyEnds: a caller that never gets a policy replaced receives an error, and does not try for ever.
func TestChangePolicyEnds(t *testing.T) {
	_, _, err := client.ChangePolicy(t.Context(), otherVersions{}, func(p egress.Policy) (egress.Policy, error) { return p, nil })
	if !errors.Is(err, egress.ErrPolicyChanged) {
		t.Error(err)
	}
}

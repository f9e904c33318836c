//go:build linux

package main

import (
	"testing"

	"agentvm/egress"
)

// TestAnswerIsNotRefused keeps the look-ups of the benchmark answerable: the gate refuses more ranges from time to time.
func TestAnswerIsNotRefused(t *testing.T) {
	if r, restricted := egress.Restricted(answerAddr); restricted {
		t.Errorf("the gate refuses the resolver's answer %v: it is in %v", answerAddr, r)
	}
}

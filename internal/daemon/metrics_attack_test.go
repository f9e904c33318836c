package daemon

import (
	"testing"

	"agentvm/internal/httpserver/servertest"
)

// TestMetricsAttacked: metrics have no keys, so that every user of the host can hold their connections: they end, and scrapers are answered.
func TestMetricsAttacked(t *testing.T) {
	_, address := startMetered(t, countingVM{fakeVM: newFakeVM()}, Config{})
	servertest.Attack(t, servertest.Target{Address: address, Good: "GET /metrics"})
}

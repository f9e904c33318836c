package fleet

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// claimBounds are those of the histogram of claims, in seconds.
var claimBounds = []float64{.01, .02, .04, .07, .12, .25, .45, 1, 2.5, 5, 10, 30}

// metrics count. The zero value is ready.
type metrics struct {
	conflicts, expired, hibernated atomic.Int64

	mu              sync.Mutex
	claims, resumes histogram
	failures        map[int]int64
}

// histogram counts times.
type histogram struct {
	counts [16]int64 // by claimBounds; the last one is of longer ones
	sum    float64
	count  int64
}

func (h *histogram) add(took time.Duration) {
	i := 0
	for i < len(claimBounds) && took.Seconds() > claimBounds[i] {
		i++
	}
	h.counts[i]++
	h.sum += took.Seconds()
	h.count++
}

func (h *histogram) write(w io.Writer, name string) {
	fmt.Fprintf(w, "# TYPE %s histogram\n", name)
	sum := int64(0)
	for i, bound := range claimBounds {
		sum += h.counts[i]
		fmt.Fprintf(w, "%s_bucket{le=\"%g\"} %d\n", name, bound, sum)
	}
	fmt.Fprintf(w, "%s_bucket{le=\"+Inf\"} %d\n%s_sum %g\n%s_count %d\n", name, h.count, name, h.sum, name, h.count)
}

func (m *metrics) claimed(took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.claims.add(took)
}

func (m *metrics) resumed(took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.resumes.add(took)
}

func (m *metrics) failed(status int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failures == nil {
		m.failures = map[int]int64{}
	}
	m.failures[status]++
}

// Metrics serves counters in Prometheus' format, without a key: for a port that clients do not reach.
func (g *Gateway) Metrics() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		type pool struct{ template, state string }
		count := map[pool]int{}
		for _, state := range []string{StateWarm, StateClaimed} {
			for _, p := range g.pods.list(state, "") {
				if state == StateWarm && !isReady(p) {
					continue
				}
				count[pool{p.Labels[LabelPool], state}]++
			}
		}
		fmt.Fprintf(w, "# TYPE agentvm_pods gauge\n")
		for p, n := range count {
			fmt.Fprintf(w, "agentvm_pods{template=%q,state=%q} %d\n", p.template, p.state, n)
		}
		tenants := g.config.Tenants()
		fmt.Fprintf(w, "# TYPE agentvm_tenant_keys gauge\nagentvm_tenant_keys %d\n", len(tenants.Keys))
		fmt.Fprintf(w, "# TYPE agentvm_tenant_problems gauge\nagentvm_tenant_problems %d\n", tenants.Problems)
		leads := 0
		if g.leads.Load() {
			leads = 1
		}
		stored := 0
		for _, l := range g.leases.list() {
			if phaseOf(l) == phaseStored {
				stored++
			}
		}
		m := &g.metrics
		fmt.Fprintf(w, "# TYPE agentvm_gateway_leads gauge\nagentvm_gateway_leads %d\n", leads)
		fmt.Fprintf(w, "# TYPE agentvm_claim_conflicts_total counter\nagentvm_claim_conflicts_total %d\n", m.conflicts.Load())
		fmt.Fprintf(w, "# TYPE agentvm_sandboxes_expired_total counter\nagentvm_sandboxes_expired_total %d\n", m.expired.Load())
		fmt.Fprintf(w, "# TYPE agentvm_hibernations_total counter\nagentvm_hibernations_total %d\n", m.hibernated.Load())
		fmt.Fprintf(w, "# TYPE agentvm_hibernated_sandboxes gauge\nagentvm_hibernated_sandboxes %d\n", stored)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.claims.write(w, "agentvm_claim_seconds")
		m.resumes.write(w, "agentvm_resume_seconds")
		fmt.Fprintf(w, "# TYPE agentvm_requests_failed_total counter\n")
		for status, n := range m.failures {
			fmt.Fprintf(w, "agentvm_requests_failed_total{status=\"%d\"} %d\n", status, n)
		}
	})
}

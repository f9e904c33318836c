package preview

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"agentvm/internal/httpserver"
)

// TestAudit: each request is recorded with the preview that it was let in for, and without what would let another in.
func TestAudit(t *testing.T) {
	var mu sync.Mutex
	var records []httpserver.Record
	counts := &httpserver.Metrics{}
	w := newWorld(t, func(cfg *ServerConfig) {
		cfg.Metrics = counts
		cfg.Audit = func(r httpserver.Record) {
			mu.Lock()
			defer mu.Unlock()
			records = append(records, r)
		}
	})
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(echo))
	p := create(t, w.store, "dev", 3000, 0)
	forged := strings.Repeat("0", len(p.Token))
	w.get(t, p.URL(w.port)+"by/name?token="+p.Token)
	w.get(t, p.PathURL(w.port)+"by/path")
	w.get(t, strings.TrimSuffix(p.PathURL(w.port), "/"))
	w.get(t, strings.Replace(p.PathURL(w.port), p.Token, forged, 1)+"x")
	w.get(t, p.URL(w.port), "Host: attacker.example")
	mu.Lock()
	defer mu.Unlock()
	var got []string
	for _, r := range records {
		got = append(got, fmt.Sprintf("%s %q %d %s", r.Server, r.Key, r.Status, r.Path))
	}
	want := []string{
		fmt.Sprintf("preview %q 200 /by/name", p.ID), fmt.Sprintf("preview %q 200 /by/path", p.ID), fmt.Sprintf("preview %q 308 /", p.ID), `preview "" 404 /x`, `preview "" 421 /`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	text, err := json.Marshal(records)
	if err != nil || strings.Contains(string(text), p.Token) || strings.Contains(string(text), forged) {
		t.Errorf("a token is in %s, %v", text, err)
	}
	var metrics httpserver.Exposition
	counts.Expose(&metrics)
	if text := metrics.String(); !strings.Contains(text, `status="421"} 1`) || strings.Contains(text, p.Token) {
		t.Errorf("metrics %s", text)
	}
}

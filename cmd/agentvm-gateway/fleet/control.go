package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"agentvm/internal/api/e2b/wire"
	"agentvm/internal/api/kinds"
	"agentvm/internal/api/pod"
	"agentvm/internal/httpserver"
)

const maxForks = 16

// caller is a request and whose it is.
type caller struct {
	*http.Request
	tenant string
}

// control adds E2B's control API.
func (g *Gateway) control(mux *http.ServeMux) {
	handle := func(pattern string, do func(http.ResponseWriter, caller) error) {
		mux.HandleFunc(pattern, g.authenticated(do))
	}
	for _, version := range []string{"", "/v2"} {
		handle("POST "+version+"/sandboxes", g.create)
		handle("POST "+version+"/sandboxes/{id}/connect", g.connect)
		handle("GET "+version+"/sandboxes", g.list)
	}
	own := func(pattern string, do func(http.ResponseWriter, caller, *sandbox) error) {
		handle(pattern, func(w http.ResponseWriter, c caller) error {
			b, err := g.owned(c, c.PathValue("id"))
			if err != nil {
				return err
			}
			return do(w, c, b)
		})
	}
	own("GET /sandboxes/{id}", func(w http.ResponseWriter, c caller, b *sandbox) error {
		d := b.detail(g, true)
		if !b.Paused && b.pod != nil {
			d.Internet = g.internet(c.Context(), b)
		}
		wire.WriteJSON(w, http.StatusOK, d)
		return nil
	})
	own("DELETE /sandboxes/{id}", func(w http.ResponseWriter, c caller, b *sandbox) error {
		if err := g.kill(c.Context(), b); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
	inPod := func(pattern string, do func(http.ResponseWriter, caller, *sandbox) error) {
		own(pattern, func(w http.ResponseWriter, c caller, b *sandbox) error {
			if b.pod == nil {
				return wire.Fail(http.StatusConflict, "sandbox %s is paused: POST /sandboxes/%s/connect resumes it", b.id, b.id)
			}
			return do(w, c, b)
		})
	}
	inPod("POST /sandboxes/{id}/timeout", g.setTimeout)
	own("POST /sandboxes/{id}/pause", g.pauseCall)
	inPod("POST /sandboxes/{id}/fork", g.fork)
	pass := func(w http.ResponseWriter, c caller, b *sandbox) error {
		g.forward(w, c.Request, b, "localhost")
		return nil
	}
	inPod("POST /sandboxes/{id}/snapshots", g.createSnapshot)
	handle("GET /snapshots", g.listSnapshots)
	handle("DELETE /templates/{id}", g.deleteSnapshot)
	inPod("PUT /sandboxes/{id}/network", pass)
	inPod("GET /sandboxes/{id}/metrics", pass)
}

// authenticated is a handler for clients with a key.
func (g *Gateway) authenticated(do func(http.ResponseWriter, caller) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("X-Api-Key")
		r.Header.Del("Authorization")
		if err := do(w, caller{r, httpserver.ClientOf(r.Context())}); err != nil {
			g.writeError(w, err)
		}
	}
}

// writeError answers with an error. What the cluster says is for the log: clients learn only that they should try again.
func (g *Gateway) writeError(w http.ResponseWriter, err error) {
	var f *wire.Failure
	if !errors.As(err, &f) {
		switch kinds.Of(err) {
		case kinds.TooLarge:
			f = &wire.Failure{Status: http.StatusRequestEntityTooLarge, Text: "the request is too long"}
		case kinds.Ended:
			f = &wire.Failure{Status: 499, Text: "the client has gone"}
		default:
			g.config.Logger.Warn("a request failed", "err", err)
			f = &wire.Failure{Status: http.StatusServiceUnavailable, Text: "the cluster did not do it: try again"}
			if apierrors.IsForbidden(err) {
				f.Status, f.Text = http.StatusInternalServerError, "the cluster forbids it: see the gateway's log"
			}
		}
	}
	if f.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	g.metrics.failed(f.Status)
	wire.WriteJSON(w, f.Status, map[string]any{"code": f.Status, "message": f.Text})
}

// owned returns a sandbox of a caller's tenant. One of another tenant is as if it were not there.
func (g *Gateway) owned(c caller, id string) (*sandbox, error) {
	b, err := g.find(c.Context(), id)
	if err == nil && b.Tenant != c.tenant {
		err = wire.Fail(http.StatusNotFound, "sandbox %.100q was not found", id)
	}
	return b, err
}

// readBody reads JSON, and what of it the gateway itself needs.
func readBody(r *http.Request, into any) (map[string]json.RawMessage, error) {
	body := map[string]json.RawMessage{}
	if err := wire.ReadJSON(r, &body); err != nil {
		return nil, err
	}
	text, err := json.Marshal(body)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return nil, wire.Fail(http.StatusBadRequest, "the request's JSON: %v", err)
	}
	if body == nil { // null
		body = map[string]json.RawMessage{}
	}
	return body, nil
}

func (g *Gateway) create(w http.ResponseWriter, c caller) error {
	began := time.Now()
	var q struct {
		Template string            `json:"templateID"`
		Metadata map[string]string `json:"metadata"`
		Timeout  *int              `json:"timeout"`
		Pauses   bool              `json:"autoPause"`
	}
	body, err := readBody(c.Request, &q)
	if err != nil {
		return err
	}
	life, err := wire.Lifetime(q.Timeout, wire.DefaultTimeout)
	if err != nil {
		return err
	}
	pool, state := q.Template, ""
	if !g.hasPool(q.Template) {
		if pool, state, err = g.snapshotOf(c.Context(), c.tenant, q.Template); err != nil {
			return err
		}
	}
	b, err := g.claim(c.Context(), Record{
		Tenant: c.tenant, Template: pool, Metadata: q.Metadata, Started: began.UTC(), Ends: began.Add(life).UTC(), Pauses: q.Pauses,
	}, body, state)
	if err != nil {
		return err
	}
	g.metrics.claimed(time.Since(began))
	wire.WriteJSON(w, http.StatusCreated, b.brief(g))
	return nil
}

// hasPool says whether a template has, or has just had, pods. A pool whose pods are all taken is waited for.
func (g *Gateway) hasPool(template string) bool {
	for _, state := range []string{StateWarm, StateClaimed} {
		if len(g.pods.list(state, template)) > 0 {
			return true
		}
	}
	return template == "base"
}

func (g *Gateway) list(w http.ResponseWriter, c caller) error {
	page, next, err := wire.List(c.URL.Query(), g.details(c.tenant))
	if err != nil {
		return err
	}
	if next != "" {
		w.Header().Set("X-Next-Token", next)
	}
	wire.WriteJSON(w, http.StatusOK, page)
	return nil
}

// details are the sandboxes of a tenant.
func (g *Gateway) details(tenant string) (all []wire.Detail) {
	for _, p := range g.pods.list(StateClaimed, "") {
		if p.Labels[LabelTenant] != tenant {
			continue
		}
		list, err := recordsOf(p)
		if err != nil {
			continue
		}
		for id, r := range list {
			b, l := &sandbox{id: id, Record: r, pod: p}, g.leases.get(id)
			if l == nil && !r.Resumed.IsZero() || l != nil && !isHeld(l, p) {
				continue // its Lease says where it is
			}
			if r.Tenant == tenant && g.isID(id) && (r.Paused || r.Pauses || time.Now().Before(r.Ends)) {
				all = append(all, b.detail(g, false))
			}
		}
	}
	for _, l := range g.leases.list() {
		if phaseOf(l) == phaseRunning || l.Labels[LabelTenant] != tenant {
			continue
		}
		if b, err := saved(l); err == nil && b.Tenant == tenant && g.isID(b.id) {
			all = append(all, b.detail(g, false))
		}
	}
	return all
}

// kill ends a sandbox. The pod ends with its last one.
func (g *Gateway) kill(ctx context.Context, b *sandbox) error {
	if b.lease != nil {
		return g.end(ctx, b, b.lease, false)
	}
	return g.drop(ctx, b.id, b.pod)
}

// tell sends a pod a request whose answer changes nothing: the records say what is true, and the pod ends with them.
func (g *Gateway) tell(ctx context.Context, b *sandbox, method, path string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), assignTime)
	defer cancel()
	response, err := g.ask(ctx, b.pod, method, path, nil)
	if err == nil {
		err = response.Body.Close()
	}
	if err != nil {
		g.config.Logger.Warn("a pod did not answer", "pod", b.pod.Name, "err", err)
	}
}

func (g *Gateway) setTimeout(w http.ResponseWriter, c caller, b *sandbox) error {
	var q struct {
		Timeout *int `json:"timeout"`
	}
	if err := wire.ReadJSON(c.Request, &q); err != nil {
		return err
	}
	life, err := wire.Lifetime(q.Timeout, wire.DefaultTimeout)
	if err != nil {
		return err
	}
	if _, err := g.change(c.Context(), b.id, func(r *Record) bool { r.Ends = time.Now().Add(life).UTC(); return true }); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// connect lengthens a sandbox's life, and resumes one that is paused.
func (g *Gateway) connect(w http.ResponseWriter, c caller) error {
	var q struct {
		Timeout *int  `json:"timeout"`
		Memory  *bool `json:"memory"`
	}
	body, err := readBody(c.Request, &q)
	if err != nil {
		return err
	}
	life, err := wire.Lifetime(q.Timeout, wire.DefaultTimeout)
	if err != nil {
		return err
	}
	b, err := g.owned(c, c.PathValue("id"))
	if err == nil && b.Paused {
		err = wire.WithMemory(q.Memory)
	}
	if err != nil {
		return err
	}
	b, resumed, err := g.wake(c.Context(), b, life, body)
	if err != nil {
		return err
	}
	code := http.StatusOK
	if resumed {
		code = http.StatusCreated
	}
	wire.WriteJSON(w, code, b.brief(g))
	return nil
}

// wake has a sandbox run for at least so long. resumed is whether it was paused.
func (g *Gateway) wake(ctx context.Context, b *sandbox, life time.Duration, body map[string]json.RawMessage) (made *sandbox, resumed bool, err error) {
	if b.pod != nil && !b.Paused { // another gateway may have paused it just now
		if _, err := g.pods.read(ctx, b.pod.Name, b.pod.UID); err != nil {
			return nil, false, err
		}
		if g.states != nil { // or begun to: that continues, and ends after this client has its answer
			if _, err := g.leases.read(ctx, b.id); err != nil {
				return nil, false, err
			}
		}
		if b, err = g.find(ctx, b.id); err != nil {
			return nil, false, err
		}
	}
	if b.pod == nil {
		b, resumed, err = g.resume(ctx, b, life)
		if err != nil || resumed {
			return b, resumed, err
		}
	} else if b.Paused {
		body["timeout"] = json.RawMessage("86400")
		if err := g.answered(ctx, b, "/sandboxes/"+b.id+"/connect", body, http.StatusCreated, http.StatusOK); err != nil {
			return nil, false, err
		}
		resumed = true
	}
	made, err = g.change(ctx, b.id, func(r *Record) bool {
		ends := time.Now().Add(life).UTC()
		if !r.Paused && !ends.After(r.Ends) {
			return false
		}
		r.Ends, r.Paused = ends, false
		return true
	})
	if err == nil && made.Paused {
		err = wire.Fail(http.StatusConflict, "sandbox %s was paused meanwhile: try again", b.id)
	}
	return made, resumed, err
}

// answered sends a pod a request and wants one of the statuses. The error is a wire.Failure when the pod has answered with another one.
func (g *Gateway) answered(ctx context.Context, b *sandbox, path string, body any, want ...int) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	response, err := g.ask(ctx, b.pod, http.MethodPost, path, strings.NewReader(string(text)))
	if err != nil {
		return fmt.Errorf("pod %s: %w", b.pod.Name, err)
	}
	defer response.Body.Close()
	said, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err != nil {
		return err
	}
	for _, status := range want {
		if response.StatusCode == status {
			return nil
		}
	}
	return failureOf(response.StatusCode, said)
}

// internet asks a sandbox's pod, which has its network, whether anything of the internet is open to it. nil: the pod does not say.
func (g *Gateway) internet(ctx context.Context, b *sandbox) *bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	response, err := g.ask(ctx, b.pod, http.MethodGet, "/sandboxes/"+b.id, nil)
	if err != nil {
		return nil
	}
	defer response.Body.Close()
	var d wire.Detail
	if response.StatusCode != http.StatusOK || json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(&d) != nil {
		return nil
	}
	return d.Internet
}

func (g *Gateway) pauseCall(w http.ResponseWriter, c caller, b *sandbox) error {
	var q struct {
		Memory *bool `json:"memory"`
	}
	body, err := readBody(c.Request, &q)
	if err == nil {
		err = wire.WithMemory(q.Memory)
	}
	if err != nil {
		return err
	}
	if b.Paused && b.lease != nil {
		if b, err = g.settle(c.Context(), b); err != nil {
			return err
		}
	}
	if b.Paused {
		return wire.Fail(http.StatusConflict, "sandbox %s is paused already", b.id)
	}
	if err := g.pause(c.Context(), b, body); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// pause hibernates a sandbox. Without an object store its processor is stopped, and its memory stays in its pod.
func (g *Gateway) pause(ctx context.Context, b *sandbox, body map[string]json.RawMessage) error {
	if g.states != nil {
		return g.hibernate(ctx, b)
	}
	if err := g.answered(ctx, b, "/sandboxes/"+b.id+"/pause", body, http.StatusNoContent, http.StatusConflict); err != nil {
		return err
	}
	_, err := g.change(ctx, b.id, func(r *Record) bool { r.Paused = true; return true })
	return err
}

// fork makes the pod copy a sandbox. The pod's records have them first, so that none is made that no gateway finds.
func (g *Gateway) fork(w http.ResponseWriter, c caller, b *sandbox) error {
	var q struct {
		Timeout *int `json:"timeout"`
		Count   *int `json:"count"`
	}
	body, err := readBody(c.Request, &q)
	if err != nil {
		return err
	}
	life, err := wire.Lifetime(q.Timeout, 15)
	if err != nil {
		return err
	}
	count := 1
	if q.Count != nil {
		count = *q.Count
	}
	if count < 1 || count > maxForks {
		return wire.Fail(http.StatusBadRequest, "count: want 1 to %d", maxForks)
	}
	r, now := b.Record, time.Now().UTC()
	r.Started, r.Ends, r.Paused = now, now.Add(life), false
	var ids, pairs []string
	for range count {
		id := g.newID()
		ids = append(ids, id)
		pairs = append(pairs, id+"="+g.token(id))
	}
	if b, err = g.changeAll(c.Context(), b.id, func(list records) {
		for _, id := range ids {
			list[id] = r
		}
	}); err != nil {
		return err
	}
	body["timeout"] = json.RawMessage("86400")
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	response, err := g.ask(c.Context(), b.pod, http.MethodPost, "/sandboxes/"+b.id+"/fork", strings.NewReader(string(text)), pod.HeaderNew, strings.Join(pairs, ","))
	if err != nil {
		return g.unfork(c.Context(), b.id, ids, err)
	}
	defer response.Body.Close()
	said, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return g.unfork(c.Context(), b.id, ids, err)
	}
	if response.StatusCode != http.StatusCreated {
		return g.unfork(c.Context(), b.id, ids, failureOf(response.StatusCode, said))
	}
	var results []struct {
		Sandbox *wire.Sandbox   `json:"sandbox,omitempty"`
		Error   json.RawMessage `json:"error,omitempty"`
	}
	if err := json.Unmarshal(said, &results); err != nil {
		return g.unfork(c.Context(), b.id, ids, err)
	}
	var failed []string
	for i := range results {
		if made := results[i].Sandbox; made != nil {
			made.Template, made.Domain = b.Template, g.config.Domain
		} else if i < len(ids) {
			failed = append(failed, ids[i])
		}
	}
	if len(failed) > 0 {
		if err := g.unfork(c.Context(), b.id, failed, nil); err != nil {
			return err
		}
	}
	wire.WriteJSON(w, http.StatusCreated, results)
	return nil
}

// unfork takes forks out of the records that were not made.
func (g *Gateway) unfork(ctx context.Context, id string, ids []string, cause error) error {
	_, err := g.changeAll(context.WithoutCancel(ctx), id, func(list records) {
		for _, id := range ids {
			delete(list, id)
		}
	})
	return errors.Join(cause, err)
}

// changeAll changes the records of a sandbox's pod.
func (g *Gateway) changeAll(ctx context.Context, id string, do func(records)) (*sandbox, error) {
	for range claimTries {
		b, err := g.find(ctx, id)
		if err != nil {
			return nil, err
		}
		if b.pod == nil {
			return nil, wire.Fail(http.StatusConflict, "sandbox %s was paused meanwhile: try again", id)
		}
		list, err := recordsOf(b.pod)
		if err != nil {
			return nil, err
		}
		do(list)
		made, err := g.pods.patch(ctx, b.pod, list.change(b.pod, nil))
		if err == nil {
			b.pod = made
			return b, nil
		}
		if !isGone(err) {
			return nil, err
		}
		if _, err := g.pods.read(ctx, b.pod.Name, b.pod.UID); err != nil {
			return nil, err
		}
	}
	return nil, wire.Fail(http.StatusConflict, "the pod of %s is being changed by others: try again", id)
}

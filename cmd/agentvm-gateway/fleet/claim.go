package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"agentvm/internal/api/e2b/wire"
	"agentvm/internal/api/pod"
	"agentvm/internal/api/pod/ticket"
)

// A claim is two steps, each of which one gateway alone can win:
//
//	warm pod ──(1) conditional update: labels, records──► claimed ──(2) the pod makes the sandbox──► running
//	    ▲ conflict: another pod                              │ the pod fails: it is deleted, another pod
//	    └────────────────────────────────────────────────────┘
//
// A gateway that ends between them leaves a pod whose sandbox no client has heard of: it ends with its time-out.

const (
	claimTries = 5
	assignTime = 10 * time.Second
	warmTime   = 30 * time.Second // for a warm pod to come
)

// errNoWarm is that of a template without a pod that waits.
var errNoWarm = &wire.Failure{Status: http.StatusServiceUnavailable, Text: "no warm pod became free: the pool is too small, or the cluster is full; try again"}

func isGone(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsConflict(err) // a conflict: there is another pod of this name
}

// isReady says whether a pod can be claimed.
func isReady(p *corev1.Pod) bool {
	if p.Status.PodIP == "" || p.DeletionTimestamp != nil {
		return false
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// claim makes a sandbox of a warm pod. body is the client's request, in E2B's form. The sandbox continues from a state of the object store, unless
// that is "".
func (g *Gateway) claim(ctx context.Context, r Record, body map[string]json.RawMessage, state string) (*sandbox, error) {
	body["templateID"], body["timeout"] = json.RawMessage(`"base"`), json.RawMessage(strconv.Itoa(int(wire.MaxLifetime/time.Second))) // the gateways end it
	delete(body, "autoPause")
	path, within := "/v2/sandboxes", assignTime
	text, err := json.Marshal(body)
	if err == nil && state != "" {
		path, within = pod.PathRestore, loadTime
		text, err = g.states.body(r.Tenant, pod.State{Name: state, Creation: text})
	}
	if err != nil {
		return nil, err
	}
	for range claimTries {
		b, err := g.take(ctx, g.newID(), r)
		if err != nil {
			return nil, err
		}
		answer, err := g.assign(ctx, b, path, text, within)
		if err == nil && answer == nil {
			return b, nil
		}
		g.discard(ctx, b.pod)
		if err == nil { // the pod refuses what the client wants
			return nil, answer
		}
		g.config.Logger.Warn("a claimed pod was given up", "pod", b.pod.Name, "err", err)
	}
	return nil, wire.Fail(http.StatusServiceUnavailable, "%d pods failed one after the other: try again", claimTries)
}

// take wins a warm pod for a sandbox.
func (g *Gateway) take(ctx context.Context, id string, r Record) (*sandbox, error) {
	deadline := time.Now().Add(g.config.warmTime())
	for {
		event, lost := g.pods.next(), false
		for _, p := range g.candidates(r.Template) {
			b := &sandbox{id: id, Record: r}
			made, err := g.pods.patch(ctx, p, records{b.id: r}.change(p, map[string]any{LabelState: StateClaimed, LabelTenant: r.Tenant}))
			g.release(p)
			switch {
			case err == nil:
				b.pod = made
				return b, nil
			case isGone(err):
				lost = true // to another gateway, or the kubelet has written something
				g.metrics.conflicts.Add(1)
				if _, err := g.pods.read(ctx, p.Name, p.UID); err != nil {
					return nil, fmt.Errorf("claim a pod: %w", err)
				}
			default:
				return nil, fmt.Errorf("claim a pod: %w", err)
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
		}
		wait := time.Until(deadline)
		if wait <= 0 {
			return nil, errNoWarm
		}
		if lost {
			continue
		}
		select {
		case <-event:
		case <-time.After(min(wait, time.Second)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// candidates yields warm pods in an order by chance, so that gateways seldom want the same one. Each is this request's until release.
func (g *Gateway) candidates(template string) func(yield func(int, *corev1.Pod) bool) {
	list := g.pods.list(StateWarm, template)
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return func(yield func(int, *corev1.Pod) bool) {
		for i, p := range list {
			if !isReady(p) || !g.reserve(p) {
				continue
			}
			if g.pods.newest(p) != p { // another request of this gateway was faster
				g.release(p)
				continue
			}
			if !yield(i, p) {
				return
			}
		}
	}
}

// reserve keeps other requests of this gateway from a pod.
func (g *Gateway) reserve(p *corev1.Pod) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reserved[p.UID] {
		return false
	}
	g.reserved[p.UID] = true
	return true
}

func (g *Gateway) release(p *corev1.Pod) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.reserved, p.UID)
}

// assign has a pod make its sandbox. answer is what the pod says against the client's request.
func (g *Gateway) assign(ctx context.Context, b *sandbox, path string, body []byte, within time.Duration) (answer, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	response, err := g.ask(ctx, b.pod, http.MethodPost, path, bytes.NewReader(body), pod.HeaderNew, b.id+"="+g.token(b.id))
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err != nil {
		return nil, err
	}
	switch response.StatusCode {
	case http.StatusCreated:
		return nil, nil
	case http.StatusBadRequest, http.StatusNotFound, http.StatusRequestEntityTooLarge:
		return failureOf(response.StatusCode, text), nil
	}
	return nil, fmt.Errorf("it answers %d %.200q", response.StatusCode, text)
}

// failureOf makes an error of a pod's answer.
func failureOf(status int, text []byte) error {
	var said struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(text, &said) != nil || said.Message == "" {
		said.Message = fmt.Sprintf("the pod answers %d", status)
	}
	return &wire.Failure{Status: status, Text: said.Message}
}

// ask sends a pod a request. The caller closes the response's body.
func (g *Gateway) ask(ctx context.Context, p *corev1.Pod, method, path string, body io.Reader, headers ...string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+g.address(p)+path, body)
	if err != nil {
		return nil, err
	}
	r.Host = "localhost"
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	r.Header.Set(ticket.Header, g.ticket(p))
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return g.transport.RoundTrip(r)
}

// address is where a pod serves gateways.
func (g *Gateway) address(p *corev1.Pod) string {
	return net.JoinHostPort(p.Status.PodIP, strconv.Itoa(int(g.config.PodPort)))
}

// ticket is one for a pod, made again before it ends.
func (g *Gateway) ticket(p *corev1.Pod) string {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if t, found := g.tickets[p.UID]; found && now.Before(t.renew) {
		return t.text
	}
	for uid, t := range g.tickets {
		if now.After(t.renew) {
			delete(g.tickets, uid)
		}
	}
	t := made{ticket.Make(g.config.Key, string(p.UID), now), now.Add(ticket.Life / 2)}
	g.tickets[p.UID] = t
	return t.text
}

// made is a ticket, and when the next one is made.
type made struct {
	text  string
	renew time.Time
}

// discard deletes a pod whose sandbox no client knows, or which has none any more.
func (g *Gateway) discard(ctx context.Context, p *corev1.Pod) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), assignTime)
	defer cancel()
	if err := g.pods.remove(ctx, p, killGrace); err != nil {
		g.config.Logger.Warn("a pod was not deleted: it is at the next look", "pod", p.Name, "err", err)
	}
}

// change changes the record of a sandbox. do returns false to leave it.
func (g *Gateway) change(ctx context.Context, id string, do func(r *Record) bool) (*sandbox, error) {
	b, err := g.find(ctx, id)
	if err != nil || !do(&b.Record) {
		return b, err
	}
	b, err = g.changeAll(ctx, id, func(list records) {
		r := list[id]
		do(&r)
		list[id] = r
	})
	if err == nil {
		do(&b.Record)
	}
	return b, err
}

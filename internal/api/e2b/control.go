package e2b

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/internal/api/e2b/wire"
	"agentvm/internal/httpserver"
)

const (
	baseTemplate       = "base" // the SDK's default
	defaultForkTimeout = 15     // seconds
	maxForks           = 16
)

// control adds the control API. Newer and older SDKs differ in the paths of some calls.
func (s *Server) control(mux *http.ServeMux) {
	// handle adds a call. listed says that do itself reads the query; others have none.
	handle := func(pattern string, listed bool, do func(http.ResponseWriter, *http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			err := error(nil)
			if !listed {
				err = wire.CheckQuery(r.URL.Query())
			}
			if err == nil {
				err = do(w, r)
			}
			if err != nil {
				writeError(w, err)
			}
		})
	}
	for _, version := range []string{"", "/v2"} {
		handle("POST "+version+"/sandboxes", false, s.create)
		handle("POST "+version+"/sandboxes/{id}/connect", false, s.connect)
		handle("GET "+version+"/sandboxes", true, s.list)
	}
	one := func(pattern string, do func(w http.ResponseWriter, r *http.Request, b *sandbox) error) {
		handle(pattern, strings.HasSuffix(pattern, "/metrics"), func(w http.ResponseWriter, r *http.Request) error {
			b, err := s.known(r.PathValue("id"))
			if err != nil {
				return err
			}
			return do(w, r, b)
		})
	}
	one("GET /sandboxes/{id}", func(w http.ResponseWriter, _ *http.Request, b *sandbox) error {
		writeJSON(w, http.StatusOK, s.detail(b, true))
		return nil
	})
	one("DELETE /sandboxes/{id}", func(w http.ResponseWriter, _ *http.Request, b *sandbox) error {
		s.remove(b)
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
	one("POST /sandboxes/{id}/timeout", s.setTimeout)
	one("POST /sandboxes/{id}/pause", s.pauseCall)
	one("POST /sandboxes/{id}/fork", s.fork)
	one("PUT /sandboxes/{id}/network", s.setNetwork)
	one("GET /sandboxes/{id}/metrics", s.metrics)
	one("POST /sandboxes/{id}/snapshots", s.createSnapshot)
	mux.Handle("GET /metrics", &s.requests)
	handle("GET /snapshots", true, s.listSnapshots)
	handle("DELETE /templates/{id}", false, s.deleteSnapshot)
	handle("/", true, func(w http.ResponseWriter, r *http.Request) error {
		if allowed := httpserver.Allowed(mux, r); allowed != "" {
			w.Header().Set("Allow", allowed)
			return fail(http.StatusMethodNotAllowed, "%.200q takes %s, not %s", r.URL.Path, allowed, r.Method)
		}
		return fail(http.StatusNotImplemented, "%s %.200q is not served: docs/guide/e2b.md lists what is", r.Method, r.URL.Path)
	})
}

func readJSON(r *http.Request, v any) error { return wire.ReadJSON(r, v) }

// known returns a sandbox, also a paused one.
func (s *Server) known(id string) (*sandbox, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.sandboxes[id]; b != nil {
		return b, nil
	}
	return nil, fail(http.StatusNotFound, "sandbox %.100q was not found", id)
}

// network is what a client says about the network.
type network struct {
	AllowOut      []string        `json:"allowOut,omitempty"`
	DenyOut       []string        `json:"denyOut,omitempty"`
	EgressProxy   json.RawMessage `json:"egressProxy,omitempty"`
	Rules         json.RawMessage `json:"rules,omitempty"`
	Mask          string          `json:"maskRequestHost,omitempty"`
	HTTPSPorts    []int           `json:"httpsPorts,omitempty"`
	PublicTraffic *bool           `json:"allowPublicTraffic,omitempty"`
	Internet      *bool           `json:"allow_internet_access,omitempty"`
}

// given says whether a value that is refused was given.
func given(raw json.RawMessage) bool {
	return !slices.Contains([]string{"", "null", "[]", "{}"}, strings.TrimSpace(string(raw)))
}

// policy narrows a policy to what a client wants. In E2B allowOut wins over denyOut: only where all is denied can that be said here.
func (n network) policy(most egress.Policy, internet *bool) (egress.Policy, error) {
	p := most.Clone()
	if given(n.EgressProxy) || given(n.Rules) || n.Mask != "" || len(n.HTTPSPorts) > 0 || n.PublicTraffic != nil && !*n.PublicTraffic {
		return p, fail(http.StatusBadRequest, "network: egressProxy, rules, maskRequestHost, httpsPorts and allowPublicTraffic false are not supported")
	}
	everything := func(rule string) bool { return rule == "0.0.0.0/0" || rule == "::/0" }
	none := internet != nil && !*internet || n.Internet != nil && !*n.Internet || slices.ContainsFunc(n.DenyOut, everything)
	parse := func(list []string) (rules []egress.Rule, err error) {
		for _, text := range list {
			if everything(text) {
				continue
			}
			rule, err := egress.ParseRule(text)
			if err != nil {
				return nil, fail(http.StatusBadRequest, "network: %v", err)
			}
			rules = append(rules, rule)
		}
		return rules, nil
	}
	allow, err := parse(n.AllowOut)
	if err != nil {
		return p, err
	}
	deny, err := parse(n.DenyOut)
	if err != nil {
		return p, err
	}
	p.Deny = append(p.Deny, deny...)
	if none {
		for _, list := range p.Lists() {
			if !list.Denies {
				*list.Rules = nil
			}
		}
	}
	switch {
	case none && len(allow) == 0:
		p.Mode = egress.None
	case none:
		p.Mode, p.Allow = egress.Allowlist, allow
	case len(allow) > 0 && len(deny) > 0:
		return p, fail(http.StatusBadRequest, `network: allowOut as exceptions of denyOut are supported with denyOut ["0.0.0.0/0"] only`)
	}
	if err := p.Validate(); err != nil {
		return p, fail(http.StatusBadRequest, "network: %v", err)
	}
	if err := p.Within(most); err != nil {
		return p, fail(http.StatusBadRequest, "network: clients can narrow the server's own policy, not widen it: %v", err)
	}
	return p, nil
}

// creation is what a client says when it makes a sandbox.
type creation struct {
	Template   string            `json:"templateID"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	Env        map[string]string `json:"envVars,omitempty"`
	Timeout    *int              `json:"timeout,omitempty"`
	Secure     *bool             `json:"secure,omitempty"` // of older SDKs: false gets a token, too
	Internet   *bool             `json:"allow_internet_access,omitempty"`
	Network    network           `json:"network,omitzero"`
	AutoPause  bool              `json:"autoPause,omitempty"`
	AutoMemory *bool             `json:"autoPauseMemory,omitempty"`
	AutoResume struct {
		Enabled bool `json:"enabled"`
	} `json:"autoResume,omitzero"`
	IAM     json.RawMessage `json:"iam,omitempty"`
	Volumes json.RawMessage `json:"volumeMounts,omitempty"`
	MCP     json.RawMessage `json:"mcp,omitempty"`
	// Processes are those of a sandbox that continues. In another VM there are none, whoever says so.
	Processes savedProcesses `json:"agentvmProcesses,omitzero"`
}

// Creation is the body with which POST /sandboxes would make a sandbox as it is now, of the template base: for a server that continues it. The
// error is client.ErrNotFound when there is none.
func (s *Server) Creation(id string) (json.RawMessage, error) {
	b, err := s.known(id)
	if err != nil {
		return nil, client.ErrNotFound
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.asked
	q.Template, q.Timeout, q.Processes = baseTemplate, nil, savedProcesses{}
	text, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	q.Processes = save(b.procs, maxJSON-len(text)-maxJSON/8) // with the punctuation, and what a server adds, it can be read again
	return json.Marshal(q)
}

func (s *Server) create(w http.ResponseWriter, r *http.Request) error {
	var q creation
	if err := readJSON(r, &q); err != nil {
		return err
	}
	if given(q.IAM) || given(q.Volumes) || given(q.MCP) || q.AutoResume.Enabled || q.AutoMemory != nil && !*q.AutoMemory {
		return fail(http.StatusBadRequest, "iam, volumeMounts, mcp, autoResume and autoPauseMemory false are not supported")
	}
	life, err := wire.Lifetime(q.Timeout, wire.DefaultTimeout)
	if err != nil {
		return err
	}
	policy, err := q.Network.policy(s.config.Policy, q.Internet)
	if err != nil {
		return err
	}
	env, err := environment(q.Env)
	if err == nil {
		err = q.Processes.check()
	}
	if err != nil {
		return err
	}
	if err := s.reserve(1); err != nil {
		return err
	}
	defer s.reserved(1)
	ids, err := s.newIDs(r, 1)
	if err != nil {
		return err
	}
	id := ids[0]
	v, err := s.make(r.Context(), q.Template, id, env, policy, q.Processes.keys())
	if err != nil {
		return err
	}
	b := &sandbox{procs: newTable(), id: id, template: q.Template, vm: v, meta: q.Metadata, env: env, pauses: q.AutoPause, policy: policy, asked: q}
	if err := b.adopt(context.WithoutCancel(r.Context()), q.Processes); err != nil {
		s.config.Logger.Warn("processes of a sandbox run on unseen", "name", id, "err", err)
	}
	writeJSON(w, http.StatusCreated, s.brief(s.add(b, life)))
	return nil
}

// environment makes KEY=VALUE of variables, by name.
func environment(vars map[string]string) (list []string, err error) {
	for _, key := range slices.Sorted(maps.Keys(vars)) {
		if key == "" || strings.ContainsAny(key, "=\x00") || strings.Contains(vars[key], "\x00") {
			return nil, fail(http.StatusBadRequest, "%.100q is no variable of an environment", key)
		}
		list = append(list, key+"="+vars[key])
	}
	return list, nil
}

// reserve keeps room for sandboxes until reserved.
func (s *Server) reserve(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return fail(http.StatusServiceUnavailable, "the server ends")
	}
	if len(s.sandboxes)+s.making+n > s.config.Max {
		return fail(http.StatusTooManyRequests, "there are %d sandboxes, and at most %d may be: kill some", len(s.sandboxes), s.config.Max)
	}
	s.making += n
	return nil
}

func (s *Server) reserved(n int) {
	s.mu.Lock()
	s.making -= n
	s.mu.Unlock()
}

// add starts a sandbox's life.
func (s *Server) add(b *sandbox, life time.Duration) *sandbox {
	b.started = time.Now()
	b.ends = b.started.Add(life)
	b.live, b.cut = context.WithCancel(s.ctx)
	b.mu.Lock()
	b.timer = time.AfterFunc(life, func() { s.expire(b) })
	b.mu.Unlock()
	s.mu.Lock()
	s.sandboxes[b.id] = b
	s.mu.Unlock()
	return b
}

// brief is E2B's Sandbox.
func (s *Server) brief(b *sandbox) wire.Sandbox {
	return wire.Sandbox{ID: b.id, Template: b.template, Client: "agentvm", EnvdVersion: wire.EnvdVersion, Token: s.token(b.id), Domain: s.config.Domain}
}

// detail is E2B's SandboxDetail, or what a list has of it.
func (s *Server) detail(b *sandbox, whole bool) wire.Detail {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := wire.Detail{
		ID: b.id, Template: b.template, Alias: b.template, Client: "agentvm", Started: b.started.UTC(), Ends: b.ends.UTC(), State: b.state(),
		CPUs: max(s.config.CPUs, 1), MemoryMB: s.config.Memory >> 20, EnvdVersion: wire.EnvdVersion, Metadata: b.meta,
	}
	if b.meta == nil {
		d.Metadata = map[string]string{}
	}
	if whole {
		internet := b.policy.Effective() != egress.None
		d.Domain, d.Token, d.Internet = s.config.Domain, s.token(b.id), &internet
		d.Lifecycle = &wire.Lifecycle{OnTimeout: map[bool]string{false: "kill", true: "pause"}[b.pauses]}
	}
	return d
}

func (b *sandbox) state() string {
	return map[bool]string{false: wire.Running, true: wire.Paused}[b.paused]
}

// list lists sandboxes in pages.
func (s *Server) list(w http.ResponseWriter, r *http.Request) error {
	s.mu.Lock()
	known := slices.Collect(maps.Values(s.sandboxes))
	s.mu.Unlock()
	var all []wire.Detail
	for _, b := range known {
		all = append(all, s.detail(b, false))
	}
	page, next, err := wire.List(r.URL.Query(), all)
	if err != nil {
		return err
	}
	if next != "" {
		w.Header().Set("X-Next-Token", next)
	}
	writeJSON(w, http.StatusOK, page)
	return nil
}

// lasts sets when a sandbox ends. longer keeps a later end.
func (b *sandbox) lasts(life time.Duration, longer bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ends := time.Now().Add(life); !longer || ends.After(b.ends) {
		b.ends = ends
		b.timer.Reset(life)
	}
}

func (s *Server) setTimeout(w http.ResponseWriter, r *http.Request, b *sandbox) error {
	var q struct {
		Timeout *int `json:"timeout"`
	}
	if err := readJSON(r, &q); err != nil {
		return err
	}
	life, err := wire.Lifetime(q.Timeout, wire.DefaultTimeout)
	if err != nil {
		return err
	}
	b.lasts(life, false)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) connect(w http.ResponseWriter, r *http.Request) error {
	var q struct {
		Timeout *int  `json:"timeout"`
		Memory  *bool `json:"memory"`
	}
	if err := readJSON(r, &q); err != nil {
		return err
	}
	life, err := wire.Lifetime(q.Timeout, wire.DefaultTimeout)
	if err != nil {
		return err
	}
	b, err := s.known(r.PathValue("id"))
	if err != nil {
		return err
	}
	b.mu.Lock()
	paused := b.paused
	b.mu.Unlock()
	if paused {
		if err := wire.WithMemory(q.Memory); err != nil {
			return err
		}
	}
	code := http.StatusOK
	if paused {
		if err := b.vm.Resume(r.Context()); err != nil {
			return err
		}
		b.mu.Lock()
		if b.paused && !b.gone {
			b.paused = false
			b.live, b.cut = context.WithCancel(s.ctx)
			code = http.StatusCreated
		}
		b.mu.Unlock()
	}
	b.lasts(life, !paused)
	writeJSON(w, code, s.brief(b))
	return nil
}

// pause stops a sandbox's processor. Streams are cut first, as if the sandbox were gone.
func (s *Server) pause(ctx context.Context, b *sandbox) error {
	b.mu.Lock()
	if b.paused || b.gone {
		b.mu.Unlock()
		return fail(http.StatusConflict, "sandbox %s is paused already", b.id)
	}
	b.paused = true
	b.cut()
	b.mu.Unlock()
	err := b.vm.Pause(ctx)
	if err != nil {
		b.mu.Lock()
		b.paused = false
		b.live, b.cut = context.WithCancel(s.ctx)
		b.mu.Unlock()
	}
	return err
}

func (s *Server) pauseCall(w http.ResponseWriter, r *http.Request, b *sandbox) error {
	var q struct {
		Memory *bool `json:"memory"`
	}
	if err := readJSON(r, &q); err != nil {
		return err
	}
	if err := wire.WithMemory(q.Memory); err != nil {
		return err
	}
	if err := s.pause(r.Context(), b); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) fork(w http.ResponseWriter, r *http.Request, b *sandbox) error {
	var q struct {
		Timeout *int `json:"timeout"`
		Count   *int `json:"count"`
	}
	if err := readJSON(r, &q); err != nil {
		return err
	}
	life, err := wire.Lifetime(q.Timeout, defaultForkTimeout)
	if err != nil {
		return err
	}
	count := 1
	if q.Count != nil {
		count = *q.Count
	}
	if count < 1 || count > maxForks {
		return fail(http.StatusBadRequest, "count: want 1 to %d", maxForks)
	}
	if err := s.reserve(count); err != nil {
		return err
	}
	defer s.reserved(count)
	names, err := s.newIDs(r, count)
	if err != nil {
		return err
	}
	forkErr := b.vm.Fork(r.Context(), names, client.ForkOptions{KeepPrograms: true})
	b.mu.Lock()
	policy, pauses, asked := b.policy, b.pauses, b.asked
	b.mu.Unlock()
	results := []map[string]any{}
	for _, name := range names {
		v, err := s.config.VMs.Open(r.Context(), name)
		if err != nil {
			err = cmp.Or(forkErr, err)
			removeErr := s.config.VMs.Remove(context.WithoutCancel(r.Context()), name)
			if removeErr != nil && !errors.Is(removeErr, client.ErrNotFound) {
				err = errors.Join(err, removeErr)
			}
			results = append(results, map[string]any{"error": map[string]any{"code": status(err), "message": err.Error()}})
			continue
		}
		fork := s.add(&sandbox{procs: newTable(), id: name, template: b.template, vm: v, meta: b.meta, env: b.env, pauses: pauses, policy: policy, asked: asked}, life)
		results = append(results, map[string]any{"sandbox": s.brief(fork)})
	}
	writeJSON(w, http.StatusCreated, results)
	return nil
}

func (s *Server) setNetwork(w http.ResponseWriter, r *http.Request, b *sandbox) error {
	var q network
	if err := readJSON(r, &q); err != nil {
		return err
	}
	policy, err := q.policy(s.config.Policy, nil)
	if err != nil {
		return err
	}
	if _, err := b.vm.SetPolicy(r.Context(), policy); err != nil {
		return err
	}
	b.mu.Lock()
	b.policy = policy
	b.asked.Network, b.asked.Internet = q, nil
	b.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// metrics answers with one reading, of now, if that is within what the request wants. The processor's use is the mean since boot.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request, b *sandbox) error {
	now, q := time.Now(), r.URL.Query()
	if err := wire.CheckQuery(q, "start", "end"); err != nil {
		return err
	}
	bounds := map[string]int64{"start": now.Unix(), "end": now.Unix()}
	for name := range bounds {
		if text := q.Get(name); text != "" {
			var err error
			if bounds[name], err = strconv.ParseInt(text, 10, 64); err != nil {
				return fail(http.StatusBadRequest, "%s: want seconds since 1970", name)
			}
		}
	}
	if q.Has("start") && q.Has("end") && bounds["start"] > bounds["end"] {
		return fail(http.StatusBadRequest, "start is after end")
	}
	if now.Unix() < bounds["start"] || now.Unix() > bounds["end"] {
		writeJSON(w, http.StatusOK, []map[string]any{})
		return nil
	}
	stats, err := b.vm.Stats(r.Context())
	if err != nil {
		return fmt.Errorf("metrics of %s: %w", b.id, err)
	}
	used := float64(0)
	if stats.Uptime > 0 {
		used = 100 * float64(stats.User+stats.System) / float64(stats.Uptime)
	}
	writeJSON(w, http.StatusOK, []map[string]any{{
		"timestamp": now.UTC(), "timestampUnix": now.Unix(), "cpuCount": max(s.config.CPUs, 1), "cpuUsedPct": used,
		"memUsed": stats.MemoryTotal - min(stats.MemoryAvailable, stats.MemoryTotal), "memTotal": stats.MemoryTotal,
		"memCache": stats.MemoryAvailable - min(stats.MemoryFree, stats.MemoryAvailable), "diskUsed": 0, "diskTotal": 0,
	}})
	return nil
}

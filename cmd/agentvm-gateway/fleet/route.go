package fleet

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"agentvm/internal/api/e2b/wire"
	"agentvm/internal/api/pod"
	"agentvm/internal/api/pod/ticket"
	"agentvm/internal/httpserver"
)

// Handler serves everything. It tells requests apart by Host, as e2b's does: PORT-ID.DOMAIN leads to a server in a sandbox, the gateway's own
// names to the control APIs and, with E2B's headers, to envd. Other names are refused.
func (g *Gateway) Handler() http.Handler {
	mux, envd := http.NewServeMux(), http.NewServeMux() // envd is a part of mux, to tell its requests, which show no key
	g.control(mux)
	g.api(mux)
	mux.HandleFunc("/", g.authenticated(func(w http.ResponseWriter, c caller) error {
		if methods := allowed(mux, w, c); methods != "" {
			return wrongMethod(c, methods)
		}
		return wire.Fail(http.StatusNotImplemented, "%s %.200q is not served: docs/guide/kubernetes.md lists what is", c.Method, c.URL.Path)
	}))
	for _, part := range []*http.ServeMux{mux, envd} {
		for _, pattern := range envdCalls {
			part.HandleFunc(pattern, g.envd)
		}
		part.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
		part.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) { // for the kubelet, which uses the pod's address
			if !g.ready.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})
	}
	keyless := func(r *http.Request) bool { // envd asks for the token of a sandbox
		_, pattern := envd.Handler(r)
		return pattern != ""
	}
	names := append([]string{g.config.Domain, "api." + g.config.Domain, "sandbox." + g.config.Domain}, g.config.Hosts...)
	door := httpserver.Door{
		Server: "gateway", Metrics: &g.requests, Audit: g.config.Audit, Stall: stallTime, Requests: maxConns, Public: keyless, Streams: keyless,
		IsHost: func(host string) bool {
			if port, _, found := wire.SplitHost(host, g.config.Domain); found {
				return port == wire.EnvdPort
			}
			return httpserver.IsHost(host, func(netip.Addr) bool { return true }, names...)
		},
		Client: func(r *http.Request) (string, bool) { return g.config.Tenants().KeyIn("X-Api-Key")(r) },
		Refuse: func(w http.ResponseWriter, r *http.Request, status int) {
			text := "the header X-API-Key, or Authorization: Bearer, has no key, or a wrong one"
			switch status {
			case http.StatusMisdirectedRequest:
				text = fmt.Sprintf("%q is no name of this gateway: name it with --host", r.Host)
			case http.StatusForbidden:
				text = "a page of another origin has made this request"
			case http.StatusServiceUnavailable:
				text = "too many requests are being answered: try again"
			}
			g.writeError(w, wire.Fail(status, "%s", text))
		},
		Handler: mux,
	}.Open()
	passing := httpserver.Door{Server: "gateway", Metrics: &g.requests, Audit: g.config.Audit}.Passing(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		port, id, _ := wire.SplitHost(r.Host, g.config.Domain)
		g.port(w, r, id, port)
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{ticket.Header, pod.HeaderNew} { // the gateway's alone
			r.Header.Del(name)
		}
		if port, id, found := wire.SplitHost(r.Host, g.config.Domain); found {
			if port != wire.EnvdPort {
				passing.ServeHTTP(w, r)
				return
			}
			r.Header.Set(wire.HeaderSandbox, id)
			r.Header.Set(wire.HeaderPort, strconv.Itoa(wire.EnvdPort))
		}
		door.ServeHTTP(w, r)
	})
}

// envd leads a request to a sandbox's envd, which checks its token.
func (g *Gateway) envd(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get(wire.HeaderSandbox)
	if token := r.Header.Get(wire.HeaderToken); id == "" && token != "" { // SDKs before 2.16 name no sandbox
		id = g.claimed(func(id string) bool { return httpserver.Equal(token, g.token(id)) })
		r.Header.Set(wire.HeaderSandbox, id)
	}
	if id == "" && r.URL.Path == "/files" {
		if id = g.signer(r); id == "" {
			g.writeError(w, wire.Fail(http.StatusUnauthorized, "the request has no token, and no valid signature"))
			return
		}
		r.Header.Set(wire.HeaderSandbox, id)
	}
	b, err := g.find(r.Context(), id)
	if err == nil && !b.Paused && b.pod != nil {
		if token := r.Header.Get(wire.HeaderToken); token != "" && !httpserver.Equal(token, g.token(id)) {
			g.writeError(w, wire.Fail(http.StatusUnauthorized, "the header %s has a wrong token", wire.HeaderToken))
			return
		} else if token != "" {
			httpserver.Known(r)
		}
		g.forward(w, r, b, "localhost")
		return
	}
	g.noSandbox(w, id, err)
}

// noSandbox answers for a sandbox that does not run, or that could not be found.
func (g *Gateway) noSandbox(w http.ResponseWriter, id string, err error) {
	if f, said := err.(*wire.Failure); err == nil || said && f.Status == http.StatusNotFound {
		g.metrics.failed(http.StatusBadGateway)
		wire.WriteNoSandbox(w, id)
		return
	}
	g.writeError(w, err)
}

// signer finds whose token has signed the URL of a file that names no sandbox.
func (g *Gateway) signer(r *http.Request) string {
	q := r.URL.Query()
	operation := "read"
	if r.Method == http.MethodPost {
		operation = "write"
	}
	given := q.Get("signature")
	if given == "" {
		return ""
	}
	return g.claimed(func(id string) bool {
		return httpserver.Equal(given, wire.Signature(q.Get("path"), operation, q.Get("username"), g.token(id), q.Get("signature_expiration")))
	})
}

// claimed returns the sandbox in a pod that is the one, "" when none is.
func (g *Gateway) claimed(isOne func(id string) bool) string {
	for _, p := range g.pods.list(StateClaimed, "") {
		list, err := recordsOf(p)
		if err != nil {
			continue
		}
		for id := range list {
			if g.isID(id) && isOne(id) {
				return id
			}
		}
	}
	return ""
}

// port leads a request to a server in a sandbox. Who has the name needs no key, as at E2B.
func (g *Gateway) port(w http.ResponseWriter, r *http.Request, id string, port uint16) {
	b, err := g.find(r.Context(), id)
	if err != nil || b.Paused {
		g.noSandbox(w, id, err)
		return
	}
	httpserver.Known(r)
	httpserver.StreamBody(w)
	r.Header.Set(wire.HeaderSandbox, id)
	r.Header.Set(wire.HeaderPort, strconv.Itoa(int(port)))
	g.forward(w, r, b, r.Host)
}

// forward leads a request to a sandbox's pod, streams and WebSockets included. When the pod ends in the middle the client's connection is cut.
func (g *Gateway) forward(w http.ResponseWriter, r *http.Request, b *sandbox, host string) {
	httpserver.FullDuplex(w)
	(&httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", g.address(b.pod), host
			p.SetXForwarded()
			p.Out.Header.Set(ticket.Header, g.ticket(b.pod))
			if host == "localhost" { // where the page is from has been checked
				for name := range p.Out.Header {
					if name == "Origin" || strings.HasPrefix(name, "Sec-Fetch-") {
						p.Out.Header.Del(name)
					}
				}
			}
		},
		Transport:     g.transport,
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			g.metrics.failed(http.StatusBadGateway)
			g.config.Logger.Debug("a pod did not answer", "pod", b.pod.Name, "err", err)
			wire.WriteNoSandbox(w, b.id)
		},
		ErrorLog: slog.NewLogLogger(g.config.Logger.Handler(), slog.LevelDebug),
	}).ServeHTTP(w, r)
}

// api adds the HTTP API: /v1/vms. A VM's name is its sandbox's identifier; what is below it is the pod's, as far as the list of passed says.
func (g *Gateway) api(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/vms", g.authenticated(func(w http.ResponseWriter, c caller) error {
		vms := []map[string]any{}
		for _, d := range g.details(c.tenant) {
			vms = append(vms, described(d))
		}
		wire.WriteJSON(w, http.StatusOK, vms)
		return nil
	}))
	mux.HandleFunc("POST /v1/vms", g.authenticated(g.createVM))
	own := func(pattern string, do func(http.ResponseWriter, caller, *sandbox) error) {
		mux.HandleFunc(pattern, g.authenticated(func(w http.ResponseWriter, c caller) error {
			b, err := g.owned(c, c.PathValue("vm"))
			if err != nil {
				return err
			}
			return do(w, c, b)
		}))
	}
	own("DELETE /v1/vms/{vm}", func(w http.ResponseWriter, c caller, b *sandbox) error {
		if err := g.kill(c.Context(), b); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
	own("GET /v1/vms/{vm}", func(w http.ResponseWriter, c caller, b *sandbox) error {
		if b.Paused {
			wire.WriteJSON(w, http.StatusOK, described(b.detail(g, false)))
			return nil
		}
		return g.pass(w, c, b, false)
	})
	own("POST /v1/vms/{vm}/pause", func(w http.ResponseWriter, c caller, b *sandbox) error {
		if !b.Paused {
			if err := g.pause(c.Context(), b, nil); err != nil {
				return err
			}
			b.Paused = true
		} else if b.pod == nil {
			if _, err := g.settle(c.Context(), b); err != nil {
				return err
			}
		}
		wire.WriteJSON(w, http.StatusOK, described(b.detail(g, false)))
		return nil
	})
	own("POST /v1/vms/{vm}/resume", func(w http.ResponseWriter, c caller, b *sandbox) error {
		q := struct {
			Life *int `json:"lifeSeconds"`
		}{}
		if _, err := readBody(c.Request, &q); err != nil {
			return err
		}
		life, err := wire.Lifetime(q.Life, wire.DefaultTimeout)
		if err == nil {
			b, _, err = g.wake(c.Context(), b, life, map[string]json.RawMessage{})
		}
		if err != nil {
			return err
		}
		wire.WriteJSON(w, http.StatusOK, described(b.detail(g, false)))
		return nil
	})
	for sockets, list := range map[bool][]string{false: passed, true: passedSockets} {
		for _, pattern := range list {
			own(pattern, func(w http.ResponseWriter, c caller, b *sandbox) error { return g.pass(w, c, b, sockets) })
		}
	}
	for _, pattern := range restOfVMs {
		own(pattern, func(w http.ResponseWriter, c caller, b *sandbox) error { return notPassed(c, b, allowed(mux, w, c)) })
	}
}

// restOfVMs are patterns of requests for which there is no operation of a VM.
var restOfVMs = []string{"/v1/vms/{vm}", "/v1/vms/{vm}/{rest...}"}

// allowed returns the methods that the gateway takes at a request's path, and sets the header Allow; "" when there is nothing at that path.
func allowed(mux *http.ServeMux, w http.ResponseWriter, c caller) string {
	methods := httpserver.Allowed(mux, c.Request, restOfVMs...)
	if methods != "" {
		w.Header().Set("Allow", methods)
	}
	return methods
}

// wrongMethod is the error of a request whose path takes other methods.
func wrongMethod(c caller, methods string) error {
	return wire.Fail(http.StatusMethodNotAllowed, "%.200q takes %s, not %s", c.URL.Path, methods, c.Method)
}

// described is what the HTTP API says of a VM that it does not ask.
func described(d wire.Detail) map[string]any {
	return map[string]any{"name": d.ID, "state": d.State, "started": d.Started, "labels": d.Metadata}
}

// createVM makes a sandbox for a client of the HTTP API.
func (g *Gateway) createVM(w http.ResponseWriter, c caller) error {
	q := struct {
		Image  string            `json:"image"`
		Labels map[string]string `json:"labels"`
		Life   *int              `json:"lifeSeconds"`
	}{Image: "base"}
	body, err := readBody(c.Request, &q)
	if err != nil {
		return err
	}
	for name := range body {
		switch name {
		case "image", "labels", "lifeSeconds":
		default:
			return wire.Fail(http.StatusUnprocessableEntity, "%.100q: VMs of a cluster are made from pools; image (the pool's name), labels and lifeSeconds can be given", name)
		}
	}
	life, err := wire.Lifetime(q.Life, wire.DefaultTimeout)
	if err != nil {
		return err
	}
	if !g.hasPool(q.Image) {
		return wire.Fail(http.StatusNotFound, "image %.100q: this cluster has no pool of pods of that name", q.Image)
	}
	now := time.Now()
	request := map[string]json.RawMessage{}
	if labels := body["labels"]; labels != nil {
		request["metadata"] = labels
	}
	b, err := g.claim(c.Context(), Record{
		Tenant: c.tenant, Template: q.Image, Metadata: q.Labels, Started: now.UTC(), Ends: now.Add(life).UTC(),
	}, request, "")
	if err != nil {
		return err
	}
	g.metrics.claimed(time.Since(now))
	w.Header().Set("Location", "/v1/vms/"+url.PathEscape(b.id))
	wire.WriteJSON(w, http.StatusCreated, map[string]any{"name": b.id, "state": wire.Running, "image": q.Image, "started": b.Started, "labels": b.Metadata})
	return nil
}

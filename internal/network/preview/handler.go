package preview

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"agentvm/internal/httpserver"
)

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.begin() {
		panic(http.ErrAbortHandler)
	}
	defer s.work.Done()
	s.noted.ServeHTTP(w, r)
}

// answer answers one request. Its order is the promise: Host, Origin, token, limits, the owner's Permit, and only then the VM.
func (s *Server) answer(raw http.ResponseWriter, r *http.Request) {
	w := newStallTimeoutWriter(raw, r, s.limits)
	defer w.finish()
	v, err := s.requestOf(r)
	if errors.Is(err, errNoToken) {
		s.serveLanding(w, r)
		return
	}
	if err != nil {
		s.serveError(w, r, err)
		return
	}
	changed := s.cfg.Store.changes()
	if v.preview, err = s.cfg.Store.Check(r.Context(), v.token); err != nil {
		s.serveError(w, r, err)
		return
	}
	httpserver.Known(r)
	httpserver.AuditedAs(r, v.preview.ID)
	s.serveRequest(w, r, &v, changed)
}

// serveRequest serves a request whose token was good when the store had not yet changed.
func (s *Server) serveRequest(w *stallTimeoutWriter, r *http.Request, v *request, changed <-chan struct{}) {
	if !s.places.Take(v.token) {
		s.serveError(w, r, errBusy)
		return
	}
	defer s.places.Leave(v.token)
	ctx, one := s.sessions.add(withRequest(r.Context(), v), v.token)
	defer s.sessions.remove(one)
	v.over = ctx.Done()
	select {
	case <-changed: // maybe revoked before it could be cut
		if _, err := s.cfg.Store.Check(ctx, v.token); err != nil {
			s.serveError(w, r, err)
			return
		}
	default:
	}
	w.over = ctx.Err
	defer context.AfterFunc(ctx, w.cut)()
	r = r.WithContext(ctx)
	switch {
	case isPreflight(r):
		answerPreflight(w, r)
	case v.byPath && !strings.HasPrefix(r.URL.EscapedPath(), v.prefix()+"/"):
		redirectToFolder(w, r, v)
	default:
		s.forward(w, r, v)
	}
}

// requestKey is the key of the request in its context.
type requestKey struct{}

func withRequest(ctx context.Context, v *request) context.Context {
	return context.WithValue(ctx, requestKey{}, v)
}

func requestIn(ctx context.Context) *request {
	v, _ := ctx.Value(requestKey{}).(*request)
	return v
}

// redirectToFolder adds the slash without which relative links of the page would lead out of the preview.
func redirectToFolder(w http.ResponseWriter, r *http.Request, v *request) {
	to := v.prefix() + "/"
	if r.URL.RawQuery != "" {
		to += "?" + r.URL.RawQuery
	}
	setCommon(w.Header())
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusPermanentRedirect)
}

func (s *Server) forward(w *stallTimeoutWriter, r *http.Request, v *request) {
	if r.ContentLength > s.limits.BodyBytes {
		s.serveError(w, r, &http.MaxBytesError{Limit: s.limits.BodyBytes})
		return
	}
	if s.cfg.Permit != nil {
		if err := s.cfg.Permit(r.Context(), v.preview); err != nil {
			s.serveError(w, r, err)
			return
		}
	}
	if s.cfg.Visit != nil {
		defer s.cfg.Visit(v.preview)()
	}
	if w.control.EnableFullDuplex() != nil { // a guest may answer while the request is still being sent
		s.log.Debug("a preview's answer waits for the end of its request")
	}
	v.body = &requestBody{ReadCloser: w.body(r.Body)}
	r.Body = http.MaxBytesReader(w.ResponseWriter, v.body, s.limits.BodyBytes)
	s.proxy.ServeHTTP(w, r)
}

// setCommon sets what all answers have whose token was good: they are for pages of any origin, without what browsers keep
// for this one, and links in them do not tell where they were.
func setCommon(h http.Header) {
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Expose-Headers", "*")
	h.Set("Referrer-Policy", referrerPolicy)
}

// isPreflight is a browser's question whether a page of another origin may do something (Fetch, "CORS-preflight request").
func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// answerPreflight permits what the browser asks for, but nothing with the visitor's credentials: a page that has the link may
// send requests without an identity.
func answerPreflight(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	setCommon(h)
	h.Set("Access-Control-Allow-Methods", "*")
	if method := r.Header.Get("Access-Control-Request-Method"); isToken(method) {
		h.Set("Access-Control-Allow-Methods", method)
	}
	h.Set("Access-Control-Allow-Headers", "*")
	if names := r.Header.Get("Access-Control-Request-Headers"); areTokens(names) {
		h.Set("Access-Control-Allow-Headers", names) // the star has no Authorization
	}
	if r.Header.Get("Access-Control-Request-Private-Network") == "true" {
		h.Set("Access-Control-Allow-Private-Network", "true")
	}
	h.Set("Access-Control-Max-Age", "600")
	h.Set("Vary", "Access-Control-Request-Method, Access-Control-Request-Headers")
	w.WriteHeader(http.StatusNoContent)
}

func areTokens(list string) bool {
	if list == "" || len(list) > 2048 {
		return false
	}
	for name := range strings.SplitSeq(list, ",") {
		if !isToken(strings.Trim(name, " \t")) {
			return false
		}
	}
	return true
}

// isToken is RFC 9110 section 5.6.2.
func isToken(s string) bool {
	for _, c := range []byte(s) {
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

package httpserver

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"agentvm/internal/host/origin"
)

// Door is what a server asks of each request before anything is done for it. It asks in one order, whatever the server:
//
//	Host ──► origin ──► key ──► place ──► Handler
//	 421       403       401      503
//
// Each answer, refusals among them, is counted and audited. A new server says what is its own: its names, its keys, what needs none, how it
// refuses. IsHost, Refuse and Handler must be set.
type Door struct {
	Server string // its name, for the audit
	// IsHost reports whether the header Host of a request names this server. A page that has given its own name the server's address (DNS
	// rebinding) has that name as Host.
	IsHost func(host string) bool
	// Admits reports whether a page of a browser may have sent a request. Default: no page of another origin, except that it may read what is Public.
	Admits func(r *http.Request, from origin.Request) bool
	// Client returns the name of the key that a request shows. nil: the server has no keys, and its clients need none.
	Client func(r *http.Request) (name string, known bool)
	// Public reports whether a request needs no key. Its handler may ask for something else, and then calls Known. nil: none is.
	Public func(r *http.Request) bool
	// Requests is how many requests are answered at once, those of Streams not counted. A client has no more of the places than it leaves free
	// for others. 0: any number.
	Requests int
	// Streams reports whether a request lasts as long as its client wishes, and so takes no place. nil: none does.
	Streams func(r *http.Request) bool
	// Stall bounds the time that each piece of a request's body, and of an answer, may take. 0: the handlers do that.
	Stall time.Duration
	// Refuse answers in the form of the server's protocol, with one of the statuses above.
	Refuse func(w http.ResponseWriter, r *http.Request, status int)
	// Metrics count the answers. nil: nothing is counted.
	Metrics *Metrics
	// Audit receives each request when it has been answered. nil: none.
	Audit func(Record)
	// Path is a request's path in the audit, without what is secret in it. nil: all of it.
	Path    func(r *http.Request) string
	Handler http.Handler

	places *Places
}

// Record is a request for an audit log.
type Record struct {
	Time     time.Time     `json:"time"`
	Server   string        `json:"server,omitempty"`
	Key      string        `json:"key,omitempty"` // its name; none: the request had no valid one
	From     string        `json:"from"`
	Method   string        `json:"method"`
	Path     string        `json:"path"`
	Status   int           `json:"status"`
	Duration time.Duration `json:"durationNanos"`
}

// AuditTo returns a Door's Audit that writes each record as a line of JSON. Where one cannot be written, failed is called.
func AuditTo(w io.Writer, failed func(error)) func(Record) {
	var mu sync.Mutex
	lines := json.NewEncoder(w)
	return func(r Record) {
		mu.Lock()
		defer mu.Unlock()
		if err := lines.Encode(r); err != nil {
			failed(err)
		}
	}
}

// Open returns the door's handler, which may answer several requests at once.
func (d Door) Open() http.Handler {
	if d.Requests > 0 {
		d.places = NewPlaces(d.Requests)
	}
	return http.HandlerFunc(d.serve)
}

// Passing returns a handler for requests that lead into a VM, whose guest decides about them: they are counted and audited, and asked for nothing.
func (d Door) Passing(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.note(w, r, func(answer *statusWriter, name *string) {
			named := r.WithContext(context.WithValue(r.Context(), auditedKey{}, name))
			defer func() { r.Pattern = named.Pattern }()
			h.ServeHTTP(answer, named)
		})
	})
}

type auditedKey struct{}

// AuditedAs names who has sent a request that passes. The handler calls it before it returns.
func AuditedAs(r *http.Request, name string) {
	if audited, ok := r.Context().Value(auditedKey{}).(*string); ok {
		*audited = name
	}
}

func (d *Door) serve(w http.ResponseWriter, r *http.Request) {
	d.note(w, r, func(answer *statusWriter, name *string) { d.ask(answer, r, name) })
}

// note counts and audits the answer that do gives, and whose name do puts into name.
func (d *Door) note(w http.ResponseWriter, r *http.Request, do func(answer *statusWriter, name *string)) {
	began, path := time.Now(), r.URL.Path // which handlers may change
	if d.Path != nil {
		path = d.Path(r)
	}
	answer := &statusWriter{ResponseWriter: w, status: http.StatusOK}
	name := ""
	defer func() { // also when a handler aborts the answer
		took := time.Since(began)
		d.Metrics.count(r.Pattern, answer.status, took)
		if d.Audit != nil {
			d.Audit(Record{began, d.Server, name, r.RemoteAddr, r.Method, path, answer.status, took})
		}
	}()
	do(answer, &name)
}

func (d *Door) ask(answer *statusWriter, r *http.Request, audited *string) {
	var w http.ResponseWriter = answer
	if d.Stall > 0 {
		if r.ContentLength != 0 { // for what net/http reads of a body that no handler has read
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(d.Stall))
		}
		r.Body, w = PatientBody(w, r, d.Stall), PatientWriter(w, d.Stall)
		defer func() { // before the end of an answer is sent, net/http waits for the rest of the body
			_ = http.NewResponseController(answer).SetWriteDeadline(time.Now().Add(2 * d.Stall))
		}()
	}
	name, known := "", d.Client == nil
	if !known {
		if name, known = d.Client(r); !known {
			name = ""
		}
	}
	*audited = name
	public := d.Public != nil && d.Public(r)
	switch {
	case !d.IsHost(r.Host):
		d.Refuse(w, r, http.StatusMisdirectedRequest)
		return
	case !d.admits(r, public):
		d.Refuse(w, r, http.StatusForbidden)
		return
	case !known && !public:
		d.Refuse(w, r, http.StatusUnauthorized)
		return
	case known:
		Known(r)
	}
	if d.places != nil && (d.Streams == nil || !d.Streams(r)) {
		if !d.places.Take(name) {
			w.Header().Set("Retry-After", "1")
			d.Refuse(w, r, http.StatusServiceUnavailable)
			return
		}
		defer d.places.Leave(name)
	}
	if name != "" {
		named := r.WithContext(context.WithValue(r.Context(), clientKey{}, name))
		defer func() { r.Pattern = named.Pattern }()
		d.Handler.ServeHTTP(w, named)
		return
	}
	d.Handler.ServeHTTP(w, r)
}

func (d *Door) admits(r *http.Request, public bool) bool {
	from, err := origin.Of(r.Header, "http://"+r.Host)
	if err != nil {
		return false
	}
	if from.Foreign { // unless the server, or a proxy in front of it, speaks TLS, or the proxy has given the request another Host
		secure, _ := origin.Of(r.Header, "https://"+r.Host)
		from.Foreign = secure.Foreign && r.Header.Get("Sec-Fetch-Site") != "same-origin"
	}
	if d.Admits != nil {
		return d.Admits(r, from)
	}
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions
	return !from.Foreign && !from.Opaque || public && reads
}

type clientKey struct{}

// ClientOf returns the name of the key that a request has shown at the door, or "".
func ClientOf(ctx context.Context) string {
	name, _ := ctx.Value(clientKey{}).(string)
	return name
}

// statusWriter notes the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// KeyIn returns a Door's Client for servers that take any of some keys as bearer tokens, or in one of the headers.
func (k Keys) KeyIn(headers ...string) func(*http.Request) (string, bool) {
	return func(r *http.Request) (string, bool) {
		given := Bearer(r)
		for _, name := range headers {
			if given == "" {
				given = strings.TrimSpace(r.Header.Get(name))
			}
		}
		return k.Find(given)
	}
}

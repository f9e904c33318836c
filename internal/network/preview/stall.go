package preview

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// A stallTimeoutWriter bounds the time for the next byte to and from a visitor to StallTimeout. Without it, a visitor that reads or
// sends a byte now and then would hold a request, and a connection into the VM, for ever.
type stallTimeoutWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
	over    func() error // the request's context, which serveRequest replaces

	mu      sync.Mutex // of the deadlines: cut is final
	isCut   bool
	hasBody bool // still to be read
	begun   bool // the answer is on its way
}

func newStallTimeoutWriter(w http.ResponseWriter, r *http.Request, l Limits) *stallTimeoutWriter {
	p := &stallTimeoutWriter{ResponseWriter: w, control: http.NewResponseController(w), stall: l.StallTimeout, over: r.Context().Err}
	p.hasBody = r.Body != nil && r.Body != http.NoBody
	if p.hasBody {
		p.allowRead() // also for the rest that net/http reads when it is refused
	}
	p.allowWrite()
	return p
}

func (p *stallTimeoutWriter) allowWrite() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.isCut {
		p.control.SetWriteDeadline(time.Now().Add(p.stall)) // an error: it is closed, and the write says so
	}
}

func (p *stallTimeoutWriter) allowRead() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.isCut {
		p.control.SetReadDeadline(time.Now().Add(p.stall))
	}
}

// endOfBody removes the deadline: from then on net/http reads to notice that the visitor has disconnected. After a failure reading
// stops: net/http would wait for the rest of the body.
func (p *stallTimeoutWriter) endOfBody(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hasBody = false
	switch {
	case p.isCut:
	case err == io.EOF: //nolint:errorlint // net/http's own
		p.control.SetReadDeadline(time.Time{})
	default:
		p.control.SetReadDeadline(time.Unix(1, 0))
	}
}

// cut makes all reads and writes fail now, also those that are blocked. When no answer has begun, the server can still say why.
func (p *stallTimeoutWriter) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	past := time.Unix(1, 0)
	p.control.SetReadDeadline(past)
	if p.begun {
		p.isCut = true
		p.control.SetWriteDeadline(past)
	}
}

func (p *stallTimeoutWriter) begin() {
	p.mu.Lock()
	p.begun = true
	p.mu.Unlock()
}

// finish sets new deadlines for what net/http still has to write and to read.
func (p *stallTimeoutWriter) finish() {
	p.allowWrite()
	p.mu.Lock()
	unread := p.hasBody
	p.mu.Unlock()
	if unread {
		p.allowRead()
	}
}

func (p *stallTimeoutWriter) Write(b []byte) (int, error) {
	p.begin()
	p.allowWrite()
	return p.ResponseWriter.Write(b)
}

// WriteHeader drops informational responses (RFC 9110 section 15.2): they have not passed rewriteResponse.
func (p *stallTimeoutWriter) WriteHeader(status int) {
	if status < 200 {
		return
	}
	p.begin()
	p.allowWrite()
	p.ResponseWriter.WriteHeader(status)
}

// Hijack is for WebSockets. On them, both sides may be silent without a limit.
func (p *stallTimeoutWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := p.control.Hijack() // takes the deadlines away
	p.begin()
	if p.over() != nil {
		p.cut()
	}
	return conn, buffered, err
}

// FlushError is for http.ResponseController, as is Unwrap.
func (p *stallTimeoutWriter) FlushError() error {
	p.allowWrite()
	return p.control.Flush()
}

func (p *stallTimeoutWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// body reads a request's body with a deadline for each read.
func (p *stallTimeoutWriter) body(from io.ReadCloser) io.ReadCloser {
	if from == nil || from == http.NoBody {
		return from
	}
	return &stallTimeoutBody{ReadCloser: from, pace: p}
}

type stallTimeoutBody struct {
	io.ReadCloser
	pace *stallTimeoutWriter
}

func (b *stallTimeoutBody) Read(to []byte) (int, error) {
	b.pace.allowRead()
	n, err := b.ReadCloser.Read(to)
	if err != nil {
		b.pace.endOfBody(err)
	}
	return n, err
}

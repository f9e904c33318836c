package preview

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// A pacedWriter is the way to a visitor and from them, on which the next byte may take StallTimeout and no more. Without it, one
// who reads or sends a byte now and then would hold a request, and a connection into the VM, for ever.
type pacedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
	over    func() error // the request's context, which serveVisit replaces

	mu      sync.Mutex // of the deadlines: cut is final
	isCut   bool
	hasBody bool // still to be read
	begun   bool // the answer is on its way
}

func newPacedWriter(w http.ResponseWriter, r *http.Request, l Limits) *pacedWriter {
	p := &pacedWriter{ResponseWriter: w, control: http.NewResponseController(w), stall: l.StallTimeout, over: r.Context().Err}
	p.hasBody = r.Body != nil && r.Body != http.NoBody
	if p.hasBody {
		p.allowRead() // also for the rest that net/http reads when it is refused
	}
	p.allowWrite()
	return p
}

func (p *pacedWriter) allowWrite() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.isCut {
		p.control.SetWriteDeadline(time.Now().Add(p.stall)) // an error: it is closed, and the write says so
	}
}

func (p *pacedWriter) allowRead() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.isCut {
		p.control.SetReadDeadline(time.Now().Add(p.stall))
	}
}

// endOfBody takes the deadline away: from now on reading is how net/http notices that the visitor has gone. After a
// failure it reads no more: net/http would wait for the rest of the body.
func (p *pacedWriter) endOfBody(err error) {
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

// cut makes all reading and writing fail now, also what is blocked. Where no answer has begun, one can still say why.
func (p *pacedWriter) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	past := time.Unix(1, 0)
	p.control.SetReadDeadline(past)
	if p.begun {
		p.isCut = true
		p.control.SetWriteDeadline(past)
	}
}

func (p *pacedWriter) begin() {
	p.mu.Lock()
	p.begun = true
	p.mu.Unlock()
}

// finish gives what net/http still has to write, and to read, its time.
func (p *pacedWriter) finish() {
	p.allowWrite()
	p.mu.Lock()
	unread := p.hasBody
	p.mu.Unlock()
	if unread {
		p.allowRead()
	}
}

func (p *pacedWriter) Write(b []byte) (int, error) {
	p.begin()
	p.allowWrite()
	return p.ResponseWriter.Write(b)
}

// WriteHeader leaves out what a guest says before its answer (RFC 9110 section 15.2), which rewriteResponse has not seen.
func (p *pacedWriter) WriteHeader(status int) {
	if status < 200 {
		return
	}
	p.begin()
	p.allowWrite()
	p.ResponseWriter.WriteHeader(status)
}

// Hijack makes a WebSocket of the connection. Both sides may be silent as long as they like.
func (p *pacedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := p.control.Hijack() // takes the deadlines away
	p.begin()
	if p.over() != nil {
		p.cut()
	}
	return conn, buffered, err
}

// FlushError is for http.ResponseController, as is Unwrap.
func (p *pacedWriter) FlushError() error {
	p.allowWrite()
	return p.control.Flush()
}

func (p *pacedWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// body reads a request's body at the visitor's pace.
func (p *pacedWriter) body(from io.ReadCloser) io.ReadCloser {
	if from == nil || from == http.NoBody {
		return from
	}
	return &pacedBody{ReadCloser: from, pace: p}
}

type pacedBody struct {
	io.ReadCloser
	pace *pacedWriter
}

func (b *pacedBody) Read(to []byte) (int, error) {
	b.pace.allowRead()
	n, err := b.ReadCloser.Read(to)
	if err != nil {
		b.pace.endOfBody(err)
	}
	return n, err
}

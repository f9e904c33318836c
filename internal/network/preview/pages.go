package preview

import (
	"context"
	_ "embed"
	"errors"
	"html"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"

	"agentvm/internal/host/origin"
)

//go:embed page.html
var pageSource string

// page is the notice for people. This is not html/template's work: that finds methods by their names, so that the linker could leave out no
// method of anything, which made agentvm a fifth larger.
func (n notice) page() string {
	hint := ""
	if n.Hint != "" {
		hint = "<p>" + html.EscapeString(n.Hint) + "</p>"
	}
	return strings.NewReplacer("$TITLE", html.EscapeString(n.Title), "$TEXT", html.EscapeString(n.Text), "$HINT", hint).Replace(pageSource)
}

// errBusy is about a server that has as many requests as it may.
var errBusy = errors.New("too many requests")

// errBody is about a request whose body breaks the rules of HTTP.
var errBody = errors.New("the request's body is malformed")

// A notice is what a visitor reads when the VM has nothing to show.
type notice struct {
	status int
	Title  string
	Text   string
	Hint   string
}

func (s *Server) serveLanding(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.EscapedPath() != "/":
		s.serveError(w, r, ErrUnknown)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		s.serveNotice(w, r, notice{http.StatusMethodNotAllowed, "Nothing to do here", "This address takes no " + quoted(r.Method) + " requests.", ""})
	default:
		s.serveNotice(w, r, notice{http.StatusOK, "Previews of agentvm",
			"This host shares programs that run in its virtual machines by links. Each link shows one of them.",
			"To see one, open the link that you were given. To make one, run: agentvm preview create VM PORT"})
	}
}

// quoted keeps what a visitor sent short and printable.
func quoted(text string) string {
	if len(text) > 20 {
		text = text[:20]
	}
	return strconv.QuoteToASCII(text)
}

func (s *Server) serveError(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil && context.Cause(r.Context()) == context.Canceled {
		panic(http.ErrAbortHandler) // the visitor has gone
	}
	v := requestIn(r.Context())
	n := noticeOf(err, v)
	if v != nil {
		s.log.Debug("a preview is not answered", "vm", v.preview.VM, "port", v.preview.Port, "status", n.status, "err", err)
	} else {
		s.log.Debug("a request is refused", "status", n.status, "err", err)
	}
	if r.Context().Err() != nil {
		w.Header().Set("Connection", "close")
	}
	if n.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "2")
	}
	s.serveNotice(w, r, n)
}

// noticeOf describes an error. v is nil before the token was found good; without a good token a visitor learns nothing about the VM.
func noticeOf(err error, v *request) notice {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.Is(err, errForm), errors.Is(err, origin.ErrMalformed):
		return notice{http.StatusBadRequest, "Not a proper request", "The request is not one that a browser makes to a preview.", ""}
	case errors.Is(err, errHost):
		return notice{http.StatusMisdirectedRequest, "Not the name of a preview",
			"Previews answer to names that end in .localhost and to 127.0.0.1, at their own port, and to no other.", "Open the link as it was given to you."}
	case errors.Is(err, ErrExpired):
		return notice{http.StatusGone, "This preview has expired", "Links of previews are good for some time only.", "Ask for a new link."}
	case errors.Is(err, ErrRevoked):
		return notice{http.StatusGone, "This preview was withdrawn", "Whoever shared it has taken it back.", "Ask for a new link if you still need it."}
	case errors.Is(err, ErrForged), errors.Is(err, ErrUnknown):
		return notice{http.StatusNotFound, "No such preview", "The link is not, or no longer, one of a preview on this host.",
			"Check that all of it was copied: it has 63 letters and digits."}
	case errors.Is(err, errBody):
		return notice{http.StatusBadRequest, "Not a proper request", "The body of the request cannot be read.", ""}
	case errors.As(err, &tooLarge):
		return notice{http.StatusRequestEntityTooLarge, "Too large", "Previews take requests of up to " + strconv.FormatInt(tooLarge.Limit, 10) + " bytes.", ""}
	case errors.Is(err, errBusy), errors.Is(err, syscall.EAGAIN) && !errors.Is(err, ErrNotRunning):
		return notice{http.StatusServiceUnavailable, "Too busy", "There are too many connections at the moment.", "Try again in a few seconds."}
	case v != nil:
		return noticeOfVM(err, v)
	}
	return notice{http.StatusServiceUnavailable, "Previews do not work at the moment", "The list of previews cannot be read.", "Try again; whoever runs agentvm finds the reason in its log."}
}

// noticeOfVM is for those who may know which VM and port it is.
func noticeOfVM(err error, v *request) notice {
	port := "port " + strconv.Itoa(int(v.preview.Port))
	vm := "the virtual machine “" + v.preview.VM + "”"
	switch {
	case errors.Is(err, ErrOtherVM):
		return notice{http.StatusGone, "Another virtual machine", "This link was made for another virtual machine than the one that answers here now.", "Ask for a new link."}
	case errors.Is(err, ErrNotRunning):
		return notice{http.StatusServiceUnavailable, "The virtual machine is not running", "This link leads to " + vm + ", which does not run at the moment, or is paused.", "Start it, or resume it, and reload this page."}
	case errors.Is(err, syscall.ECONNREFUSED):
		return notice{http.StatusBadGateway, "Nothing is listening", "No program in " + vm + " listens on " + port + ".", "Start it and reload this page."}
	case errors.Is(err, syscall.EACCES):
		return notice{http.StatusForbidden, "Not permitted", "The policy of " + vm + " does not permit " + port + ".", ""}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), strings.Contains(err.Error(), "timeout awaiting response headers"):
		return notice{http.StatusGatewayTimeout, "No answer", "The program on " + port + " of " + vm + " does not answer.", "Look whether it is busy, and reload this page."}
	}
	return notice{http.StatusBadGateway, "Not a proper answer", "The program on " + port + " of " + vm + " broke off, or does not speak HTTP.", "Look at its output for the reason."}
}

// serveNotice answers with a page for people and with a line for programs. It says nothing of tokens, and runs no scripts.
func (s *Server) serveNotice(w http.ResponseWriter, r *http.Request, n notice) {
	h := w.Header()
	if requestIn(r.Context()) != nil {
		setCommon(h)
	}
	h.Set("Referrer-Policy", referrerPolicy)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		h.Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(n.status)
		w.Write([]byte(strings.TrimSpace(n.Title+". "+n.Text+" "+n.Hint) + "\n")) // an error: the visitor has disconnected
		return
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(n.status)
	if _, err := io.WriteString(w, n.page()); err != nil {
		s.log.Debug("a page was not sent", "err", err)
	}
}

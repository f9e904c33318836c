package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"agentvm/client"
	"agentvm/internal/api/rpc"
	"agentvm/internal/httpserver"
)

// E2B's SDKs speak Connect with JSON. Messages are those of envd's process.proto and filesystem.proto, by their names in JSON; the binary codec is
// refused.
const maxKeepalive = 10 * time.Minute

// codec reads and writes messages as JSON.
type codec struct{}

func (codec) Name() string                        { return "json" }
func (codec) Marshal(message any) ([]byte, error) { return json.Marshal(message) }
func (codec) Unmarshal(b []byte, message any) error {
	if err := json.Unmarshal(b, message); err != nil {
		return errors.New("the message's JSON: " + err.Error())
	}
	return nil
}

// coded gives errors that have a status of HTTP a code. Others have that of their kind.
func coded(err error) error {
	var f *failure
	if !errors.As(err, &f) {
		return err
	}
	switch f.Status {
	case http.StatusUnauthorized:
		return rpc.Errorf(connect.CodeUnauthenticated, "%s", f.Text)
	case http.StatusBadRequest:
		return rpc.Errorf(connect.CodeInvalidArgument, "%s", f.Text)
	}
	return err
}

// call is a request to envd in a sandbox.
type call struct {
	*http.Request // its context ends when the sandbox is paused or removed, too
	server        *Server
	sandbox       *sandbox
	live          context.Context // that of the request, with the time that the client gives
	user          user
}

type callKey struct{}

// envd adds what the SDK calls in a sandbox.
func (s *Server) envd(mux *http.ServeMux) {
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {
		if _, _, err := s.find(r.Header.Get("E2b-Sandbox-Id")); err != nil {
			writeNoSandbox(w, r)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /files", s.download)
	mux.HandleFunc("POST /files", s.upload)
	add := func(pattern string, h http.Handler) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.serveCall(w, r, h) })
	}
	const process, filesystem = "/process.Process/", "/filesystem.Filesystem/"
	add(unary(process+"List", listProcesses))
	add(unary(process+"Update", updateProcess))
	add(unary(process+"SendInput", sendInput))
	add(unary(process+"SendSignal", sendSignal))
	add(unary(process+"CloseStdin", closeStdin))
	add(streaming(process+"Start", startProcess))
	add(streaming(process+"Connect", connectProcess))
	add(unary(filesystem+"Stat", statFile))
	add(unary(filesystem+"MakeDir", makeDir))
	add(unary(filesystem+"Move", moveFile))
	add(unary(filesystem+"ListDir", listDir))
	add(unary(filesystem+"Remove", removeFile))
	add(unary(filesystem+"CreateWatcher", createWatcher))
	add(unary(filesystem+"GetWatcherEvents", watcherEvents))
	add(unary(filesystem+"RemoveWatcher", removeWatcher))
	add(streaming(filesystem+"WatchDir", watchDir))
}

func unary[In any](procedure string, do func(*call, *In) (any, error)) (string, http.Handler) {
	return rpc.Unary(procedure, func(ctx context.Context, in *In) (out *any, err error) {
		err = callOf(ctx).do(errCut, func(c *call) error {
			message, err := do(c, in)
			out = &message
			return err
		})
		return out, err
	}, connect.WithCodec(codec{}))
}

// sender sends a message of a stream. One goroutine at a time may call it.
type sender func(message any) error

func streaming[In any](procedure string, do func(*call, *In, sender) error) (string, http.Handler) {
	return rpc.Stream(procedure, func(ctx context.Context, in *In, send func(*any) error) error {
		return callOf(ctx).do(http.ErrAbortHandler, func(c *call) error {
			return do(c, in, func(message any) error { return send(&message) })
		})
	}, connect.WithCodec(codec{}))
}

// callOf returns the call of a method's context.
func callOf(ctx context.Context) *call {
	c := *ctx.Value(callKey{}).(*call)
	c.live = ctx
	return &c
}

// errCut is the error of a call whose sandbox, or client, is gone.
var errCut = errors.New("the sandbox is gone")

// do runs a method. Where the sandbox is gone there is no answer of Connect: serveCall answers, or the connection ends without the last message of a
// stream, by which the SDK knows.
func (c *call) do(gone error, method func(*call) error) error {
	err := method(c)
	if c.Context().Err() != nil || errors.Is(err, errCut) || errors.Is(err, client.ErrClosed) {
		panic(gone)
	}
	return coded(err)
}

// serveCall finds the sandbox of a request for a method, and who asks.
func (s *Server) serveCall(w http.ResponseWriter, r *http.Request, method http.Handler) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" && kind != "application/connect+json" {
		w.Header().Set("Accept-Post", "application/json, application/connect+json")
		w.WriteHeader(http.StatusUnsupportedMediaType)
		return
	}
	r.Header.Set("Content-Type", kind) // a charset is UTF-8
	c, done, err := s.begin(r)
	switch {
	case err == nil:
	case status(err) == http.StatusBadGateway:
		writeNoSandbox(w, r)
		return
	default:
		rpc.Refuse(w, r, coded(err))
		return
	}
	defer done()
	defer func() {
		switch problem := recover(); problem {
		case nil:
		case errCut:
			writeNoSandbox(w, r)
		default:
			panic(problem)
		}
	}()
	method.ServeHTTP(w, c.Request)
}

// begin finds the sandbox of a request and who asks. Without the token nothing is said about the sandbox but that it runs.
func (s *Server) begin(r *http.Request) (*call, context.CancelFunc, error) {
	b, live, err := s.find(r.Header.Get("E2b-Sandbox-Id"))
	if err != nil {
		return nil, nil, err
	}
	if !httpserver.Equal(r.Header.Get("X-Access-Token"), s.token(b.id)) {
		return nil, nil, rpc.Errorf(connect.CodeUnauthenticated, "the header X-Access-Token has no token, or a wrong one")
	}
	httpserver.Known(r)
	name, _, _ := r.BasicAuth()
	return s.newCall(r, b, live, name)
}

// newCall makes the call of a request to a sandbox in which a user asks. The caller calls the function at its end.
func (s *Server) newCall(r *http.Request, b *sandbox, live context.Context, user string) (*call, context.CancelFunc, error) {
	c := &call{server: s, sandbox: b}
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), callKey{}, c))
	stop := context.AfterFunc(live, cancel)
	done := func() { stop(); cancel() }
	c.Request, c.live = r.WithContext(ctx), ctx
	var err error
	if c.user, err = b.lookUp(ctx, user, s.config.User); err != nil {
		done()
		return nil, nil, err
	}
	return c, done, nil
}

// isType says whether a request has a content type.
func isType(r *http.Request, want string) bool {
	got, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && got == want
}

// keepalive is after which silence a stream gets a sign of life, 0 for never.
func keepalive(h http.Header) time.Duration {
	seconds, err := strconv.ParseUint(h.Get("Keepalive-Ping-Interval"), 10, 31)
	if err != nil {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, maxKeepalive)
}

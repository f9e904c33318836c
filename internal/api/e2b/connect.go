package e2b

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"strconv"
	"time"

	"agentvm/client"
	"agentvm/internal/httpserver"
)

// Connect RPC with JSON, as connectrpc.com/docs/protocol describes it: what E2B's SDKs speak. The binary codec, compression and gRPC are refused.
//
//	unary   application/json          one message each way
//	stream  application/connect+json  envelopes: flags u8, length u32 big-endian, JSON; flag 2 marks the last one
const (
	endFlag      = 2
	maxKeepalive = 10 * time.Minute
)

// Codes of Connect, with the HTTP status of a unary call that fails so.
const (
	invalidArgument   = "invalid_argument"
	notFound          = "not_found"
	alreadyExists     = "already_exists"
	unauthenticated   = "unauthenticated"
	resourceExhausted = "resource_exhausted"
	deadlineExceeded  = "deadline_exceeded"
	unimplemented     = "unimplemented"
)

var codeStatus = map[string]int{
	invalidArgument: 400, notFound: 404, alreadyExists: 409, unauthenticated: 401, resourceExhausted: 429, deadlineExceeded: 504, unimplemented: 501, "internal": 500, "unavailable": 503,
}

// rpcError is an error with a code of Connect.
type rpcError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (e *rpcError) Error() string { return e.Message }

// asRPC gives every error a code.
func asRPC(err error) *rpcError {
	var known *rpcError
	if errors.As(err, &known) {
		return known
	}
	code := "internal"
	switch {
	case errors.Is(err, fs.ErrNotExist):
		code = notFound
	case errors.Is(err, context.DeadlineExceeded):
		code = deadlineExceeded
	case status(err) == http.StatusUnauthorized:
		code = unauthenticated
	case status(err) == http.StatusBadRequest, status(err) == http.StatusRequestEntityTooLarge:
		code = invalidArgument
	case status(err) == http.StatusTooManyRequests:
		code = resourceExhausted
	}
	return &rpcError{code, err.Error()}
}

// call is a request to envd in a sandbox.
type call struct {
	*http.Request
	server  *Server
	sandbox *sandbox
	live    context.Context // ends with the request, and when the sandbox is paused or removed
	user    user
}

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
	for name, method := range map[string]func(*call, []byte) (any, error){
		"process.Process/List": unary(listProcesses), "process.Process/Update": unary(updateProcess), "process.Process/SendInput": unary(sendInput),
		"process.Process/SendSignal": unary(sendSignal), "process.Process/CloseStdin": unary(closeStdin),
		"filesystem.Filesystem/Stat": unary(statFile), "filesystem.Filesystem/MakeDir": unary(makeDir), "filesystem.Filesystem/Move": unary(moveFile),
		"filesystem.Filesystem/ListDir": unary(listDir), "filesystem.Filesystem/Remove": unary(removeFile),
		"filesystem.Filesystem/CreateWatcher": unary(createWatcher), "filesystem.Filesystem/GetWatcherEvents": unary(watcherEvents), "filesystem.Filesystem/RemoveWatcher": unary(removeWatcher),
	} {
		mux.HandleFunc("POST /"+name, func(w http.ResponseWriter, r *http.Request) { s.serveUnary(w, r, method) })
	}
	mux.HandleFunc("POST /process.Process/Start", func(w http.ResponseWriter, r *http.Request) { s.serveStream(w, r, startProcess) })
	mux.HandleFunc("POST /process.Process/Connect", func(w http.ResponseWriter, r *http.Request) { s.serveStream(w, r, connectProcess) })
	mux.HandleFunc("POST /filesystem.Filesystem/WatchDir", func(w http.ResponseWriter, r *http.Request) { s.serveStream(w, r, watchDir) })
}

// unary makes a method of a function of its message.
func unary[In any](do func(*call, *In) (any, error)) func(*call, []byte) (any, error) {
	return func(c *call, body []byte) (any, error) {
		in, err := decode[In](body)
		if err != nil {
			return nil, err
		}
		return do(c, in)
	}
}

func decode[In any](body []byte) (*In, error) {
	in := new(In)
	if err := json.Unmarshal(body, in); err != nil {
		return nil, &rpcError{invalidArgument, "the message's JSON: " + err.Error()}
	}
	return in, nil
}

// begin finds the sandbox of a request and who asks. Without the token nothing is said about the sandbox but that it runs.
func (s *Server) begin(w http.ResponseWriter, r *http.Request) (*call, context.CancelFunc, error) {
	b, live, err := s.find(r.Header.Get("E2b-Sandbox-Id"))
	if err != nil {
		return nil, nil, err
	}
	if !httpserver.Equal(r.Header.Get("X-Access-Token"), s.token(b.id)) {
		return nil, nil, &rpcError{unauthenticated, "the header X-Access-Token has no token, or a wrong one"}
	}
	httpserver.Known(r)
	name, _, _ := r.BasicAuth()
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(live, cancel)
	c := &call{Request: r, server: s, sandbox: b, live: ctx}
	if c.user, err = b.lookUp(ctx, name, s.config.User); err != nil {
		stop()
		cancel()
		return nil, nil, err
	}
	return c, func() { stop(); cancel() }, nil
}

// isType says whether a request has a content type.
func isType(r *http.Request, want string) bool {
	got, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && got == want
}

func (s *Server) serveUnary(w http.ResponseWriter, r *http.Request, do func(*call, []byte) (any, error)) {
	if !isType(r, "application/json") {
		w.Header().Set("Accept-Post", "application/json")
		w.WriteHeader(http.StatusUnsupportedMediaType)
		return
	}
	c, done, err := s.begin(w, r)
	var out any
	if err == nil {
		defer done()
		var body []byte
		if body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxJSON)); err == nil {
			out, err = do(c, body)
		}
		if c.live.Err() != nil {
			err = fail(http.StatusBadGateway, "The sandbox was not found")
		}
	}
	switch {
	case err == nil:
		writeJSON(w, http.StatusOK, out)
	case status(err) == http.StatusBadGateway:
		writeNoSandbox(w, r)
	default:
		e := asRPC(err)
		writeJSON(w, codeStatus[e.Code], e)
	}
}

// stream writes messages. One goroutine at a time may use it.
type stream struct{ w http.ResponseWriter }

func (s *stream) send(flags byte, message any) error {
	b, err := json.Marshal(message)
	if err != nil {
		return err
	}
	frame := append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(b))), b...)
	if _, err = s.w.Write(frame); err == nil {
		err = http.NewResponseController(s.w).Flush()
	}
	return err
}

// readEnvelope reads the only message of a request.
func readEnvelope(r io.Reader) ([]byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, &rpcError{invalidArgument, "the request has no message"}
	}
	n := binary.BigEndian.Uint32(head[1:])
	if head[0] != 0 || n > maxJSON {
		return nil, &rpcError{invalidArgument, "the request's message is compressed, its last, or longer than 4 MiB"}
	}
	body, err := io.ReadAll(io.LimitReader(r, int64(n)+1))
	if err != nil || len(body) != int(n) {
		return nil, &rpcError{invalidArgument, "the request has not exactly one whole message"}
	}
	return body, nil
}

// errCut is the error of a stream whose sandbox is gone. The connection then ends without a last envelope, by which the SDK knows.
var errCut = errors.New("the sandbox is gone")

func (s *Server) serveStream(w http.ResponseWriter, r *http.Request, do func(*call, []byte, *stream) error) {
	if !isType(r, "application/connect+json") {
		w.Header().Set("Accept-Post", "application/connect+json")
		w.WriteHeader(http.StatusUnsupportedMediaType)
		return
	}
	c, done, err := s.begin(w, r)
	if err != nil && status(err) == http.StatusBadGateway {
		writeNoSandbox(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/connect+json")
	out := &stream{w}
	if err == nil {
		defer done()
		var body []byte
		if body, err = readEnvelope(r.Body); err == nil {
			err = do(c, body, out)
		}
		if errors.Is(err, errCut) || errors.Is(err, client.ErrClosed) || c.live.Err() != nil {
			panic(http.ErrAbortHandler)
		}
	}
	end := map[string]any{}
	if err != nil {
		end["error"] = asRPC(err)
	}
	_ = out.send(endFlag, end) // a client that has gone needs no end
}

// timing reads how long a stream may last, 0 for ever, and after which silence it gets a sign of life, 0 for never.
func timing(h http.Header) (timeout, keepalive time.Duration) {
	if ms, err := strconv.ParseUint(h.Get("Connect-Timeout-Ms"), 10, 40); err == nil {
		timeout = time.Duration(ms) * time.Millisecond
	}
	if seconds, err := strconv.ParseUint(h.Get("Keepalive-Ping-Interval"), 10, 31); err == nil && seconds > 0 {
		keepalive = min(time.Duration(seconds)*time.Second, maxKeepalive)
	}
	return timeout, keepalive
}

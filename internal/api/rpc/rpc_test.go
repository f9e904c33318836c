package rpc

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"agentvm/internal/api/kinds"
)

type text = wrapperspb.StringValue

// methods answers with what it was sent, or with fail's error.
func methods(fail func(string) error) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(Unary("/t.T/One", func(_ context.Context, in *text) (*text, error) { return in, fail(in.Value) }))
	mux.Handle(Stream("/t.T/Many", func(_ context.Context, in *text, send func(*text) error) error {
		return errors.Join(send(in), fail(in.Value))
	}))
	return mux
}

// TestKinds: each kind of error has one code, over each protocol and each form of answer, and its text arrives as it is.
func TestKinds(t *testing.T) {
	errs := map[string]error{}
	server := httptest.NewUnstartedServer(methods(func(name string) error { return errs[name] }))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	seen := map[kinds.Kind]bool{}
	for _, test := range []struct {
		err  error
		want connect.Code
	}{
		{errors.New("no more is known: 100 %"), connect.CodeInternal}, {fs.ErrInvalid, connect.CodeInvalidArgument}, {fs.ErrNotExist, connect.CodeNotFound},
		{syscall.ENOTEMPTY, connect.CodeFailedPrecondition}, {fs.ErrPermission, connect.CodePermissionDenied}, {&http.MaxBytesError{Limit: 5}, connect.CodeResourceExhausted},
		{os.ErrDeadlineExceeded, connect.CodeDeadlineExceeded}, {context.Canceled, connect.CodeCanceled}, {context.DeadlineExceeded, connect.CodeDeadlineExceeded},
		{Errorf(connect.CodeUnavailable, "a code of its own"), connect.CodeUnavailable},
		{fmt.Errorf("wrapped: %w", fs.ErrNotExist), connect.CodeNotFound},
	} {
		seen[kinds.Of(test.err)] = true
		name := test.err.Error()
		errs[name] = test.err
		want := name
		if coded := (*connect.Error)(nil); errors.As(test.err, &coded) {
			want = coded.Message()
		}
		for protocol, option := range map[string]connect.ClientOption{
			"gRPC": connect.WithGRPC(), "gRPC-Web": connect.WithGRPCWeb(), "Connect": connect.WithClientOptions(), "Connect with JSON": connect.WithProtoJSON(),
		} {
			check := func(err error) {
				t.Helper()
				var got *connect.Error
				if !errors.As(err, &got) || got.Code() != test.want || got.Message() != want {
					t.Errorf("%s over %s: %v, want %v", name, protocol, err, test.want)
				}
			}
			_, err := connect.NewClient[text, text](server.Client(), server.URL+"/t.T/One", option).CallUnary(t.Context(), connect.NewRequest(&text{Value: name}))
			check(err)
			stream, err := connect.NewClient[text, text](server.Client(), server.URL+"/t.T/Many", option).CallServerStream(t.Context(), connect.NewRequest(&text{Value: name}))
			if err != nil {
				t.Fatal(err)
			}
			if !stream.Receive() || stream.Msg().Value != name || stream.Receive() {
				t.Errorf("%s over %s: want one message and the error", name, protocol)
			}
			check(stream.Err())
			_ = stream.Close()
		}
	}
	for kind := range codes {
		if !seen[kind] {
			t.Errorf("kind %d has no case", kind)
		}
	}
	if len(codes) != len(seen) {
		t.Errorf("%d kinds have codes, %d have cases", len(codes), len(seen))
	}
}

func envelope(flags byte, message string) string {
	return string(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(message)))) + message
}

// bomb is 96 MiB, small when compressed.
func bomb() string {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	zeros := make([]byte, 1<<20)
	for range 96 {
		_, _ = w.Write(zeros)
	}
	_ = w.Close()
	return b.String()
}

// TestTooMuch: what is too long, compressed, cut or doubled is refused soon and in little memory, whatever the protocol.
func TestTooMuch(t *testing.T) {
	called := false
	h := methods(func(string) error { called = true; return nil })
	packed, long := bomb(), strings.Repeat("x", MaxMessage+1)
	for name, c := range map[string]struct {
		kind, body string
		header     []string
		want       connect.Code
	}{
		"a long message of gRPC":           {"application/grpc", envelope(0, long), nil, connect.CodeResourceExhausted},
		"a promise of gRPC":                {"application/grpc", "\x00\xff\xff\xff\xff{}", nil, connect.CodeResourceExhausted},
		"a message of gRPC that was cut":   {"application/grpc", "\x00\x00\x00\x10\x00{}", nil, connect.CodeInternal},
		"no message of gRPC":               {"application/grpc", "", nil, connect.CodeUnimplemented},
		"a half head of gRPC":              {"application/grpc", "\x00\x00", nil, connect.CodeInternal},
		"two messages of gRPC":             {"application/grpc", envelope(0, "") + envelope(0, ""), nil, connect.CodeUnimplemented},
		"a compressed message of gRPC":     {"application/grpc", envelope(1, packed), nil, connect.CodeInternal},
		"a bomb of gRPC":                   {"application/grpc", envelope(1, packed), []string{"Grpc-Encoding", "gzip"}, connect.CodeUnimplemented},
		"a bomb of gRPC-Web":               {"application/grpc-web", envelope(1, packed), []string{"Grpc-Encoding", "gzip"}, connect.CodeUnimplemented},
		"a bomb of Connect":                {"application/proto", packed, []string{"Content-Encoding", "gzip"}, connect.CodeUnimplemented},
		"a long message of Connect":        {"application/json", `"` + strings.Repeat(long, 8) + `"`, nil, connect.CodeResourceExhausted},
		"deep JSON":                        {"application/json", strings.Repeat("[", 1<<20), nil, connect.CodeInvalidArgument},
		"a deadline that is no number":     {"application/json", `"x"`, []string{"Connect-Timeout-Ms", "soon"}, connect.CodeInvalidArgument},
		"a deadline with two fractions":    {"application/json", `"x"`, []string{"Connect-Timeout-Ms", "5.5.5"}, connect.CodeInvalidArgument},
		"a deadline of gRPC without units": {"application/grpc", envelope(0, ""), []string{"Grpc-Timeout", "5"}, connect.CodeInvalidArgument},
		"a negative deadline":              {"application/json", `"x"`, []string{"Connect-Timeout-Ms", "-5"}, connect.CodeInvalidArgument},
	} {
		for method, kind := range map[string]string{"One": c.kind, "Many": strings.NewReplacer("/json", "/connect+json", "/proto", "/connect+proto").Replace(c.kind)} {
			body, header := c.body, http.Header{"Content-Type": {kind}}
			if kind != c.kind {
				body = envelope(0, body)
			}
			for i := 0; i < len(c.header); i += 2 {
				header.Set(c.header[i], c.header[i+1])
				if kind != c.kind && c.header[i] == "Content-Encoding" {
					header.Set("Connect-Content-Encoding", c.header[i+1])
				}
			}
			sent := strings.NewReader(body)
			r := httptest.NewRequest("POST", "/t.T/"+method, sent)
			r.Header = header
			w := httptest.NewRecorder()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			began := time.Now()
			called = false
			h.ServeHTTP(w, r)
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 || time.Since(began) > 10*time.Second {
				t.Errorf("%s: %d bytes in %v", name, n, time.Since(began))
			}
			if read := len(body) - sent.Len(); read > MaxMessage+1<<10 {
				t.Errorf("%s: %d bytes of it were read", name, read)
			}
			status := w.Result()
			if got := w.Body.String() + fmt.Sprint(status.Header, status.Trailer); called || !strings.Contains(got, fmt.Sprintf("%q", c.want.String())) &&
				!strings.Contains(got, fmt.Sprintf("Grpc-Status:[%d]", c.want)) {
				t.Errorf("%s to %s: %d %.300s, called: %v, want %v", name, method, w.Code, got, called, c.want)
			}
		}
	}
}

// FuzzRequest: no request makes the server panic, keep more than it may, or serve without a code; no header gives a deadline that a method cannot see.
func FuzzRequest(f *testing.F) {
	for _, kind := range []string{"application/grpc", "application/grpc-web+proto", "application/json", "application/connect+json", "application/proto"} {
		for _, limit := range []string{"", "1S", "99999999H", "00000000n", "-1S", "1", "99999999999"} {
			f.Add([]byte("\x00\x00\x00\x00\x04\x0a\x02ls"), kind, limit)
		}
		f.Add([]byte{0, 0xff, 0xff, 0xff, 0xff, 1}, kind, "")
		f.Add([]byte{1, 0, 0, 0, 2, 1, 2}, kind, "")
	}
	f.Fuzz(func(t *testing.T, body []byte, kind, limit string) {
		h := http.NewServeMux()
		h.Handle(Unary("/t.T/One", func(ctx context.Context, in *text) (*text, error) {
			if len(in.Value) > len(body) {
				t.Errorf("%d bytes of %d", len(in.Value), len(body))
			}
			if at, set := ctx.Deadline(); set && limit == "" || set && time.Until(at) > 1<<20*time.Hour {
				t.Errorf("%q gives a deadline at %v", limit, at)
			}
			return in, ctx.Err()
		}))
		r := httptest.NewRequest("POST", "/t.T/One", bytes.NewReader(body))
		r.Header = http.Header{"Content-Type": {kind}, "Grpc-Timeout": {limit}, "Connect-Timeout-Ms": {limit}}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code == http.StatusOK && w.Result().Trailer.Get("Grpc-Status") == "" && w.Header().Get("Grpc-Status") == "" && strings.HasPrefix(w.Header().Get("Content-Type"), "application/grpc") && !bytes.Contains(w.Body.Bytes(), []byte("grpc-status")) {
			t.Errorf("%q: no status: %v %q", body, w.Header(), w.Body)
		}
	})
}

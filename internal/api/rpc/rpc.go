// Package rpc serves methods over gRPC, gRPC-Web and Connect, by connectrpc.com/connect: with one bound for what a client sends, and one code for each
// kind of error. Messages are Protocol Buffers, or what another codec reads.
package rpc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"agentvm/internal/api/kinds"
)

// MaxMessage is how many bytes a request's message may have.
const MaxMessage = 4 << 20

// maxFraming is what a body may have besides its message.
const maxFraming = 64

// Errorf makes an error with a code.
func Errorf(code connect.Code, format string, args ...any) error {
	return connect.NewError(code, fmt.Errorf(format, args...))
}

var codes = map[kinds.Kind]connect.Code{
	kinds.Internal: connect.CodeInternal,
	kinds.Invalid:  connect.CodeInvalidArgument,
	kinds.NotFound: connect.CodeNotFound,
	kinds.Conflict: connect.CodeFailedPrecondition,
	kinds.Denied:   connect.CodePermissionDenied,
	kinds.TooLarge: connect.CodeResourceExhausted,
	kinds.Stalled:  connect.CodeDeadlineExceeded,
	kinds.Ended:    connect.CodeCanceled,
	kinds.Timeout:  connect.CodeDeadlineExceeded,
}

// Code is the code of an error: the one that it has, or that of its kind.
func Code(err error) connect.Code {
	if coded, ok := errors.AsType[*connect.Error](err); ok {
		return coded.Code()
	}
	return codes[kinds.Of(err)]
}

// coded is an error as clients get it.
func coded(err error) error {
	if _, ok := errors.AsType[*connect.Error](err); ok || err == nil {
		return err
	}
	return connect.NewError(Code(err), err)
}

// Unary returns the pattern of a method with one answer, for http.ServeMux, and its handler.
func Unary[In, Out any](procedure string, do func(context.Context, *In) (*Out, error), o ...connect.HandlerOption) (string, http.Handler) {
	return post(procedure, connect.NewUnaryHandlerSimple(procedure, func(ctx context.Context, in *In) (*Out, error) {
		out, err := do(ctx, in)
		return out, coded(err)
	}, append(o, limits())...))
}

// Stream returns the pattern of a method with any number of answers, and its handler. One goroutine at a time may call send, which has encoded a
// message, and passed it on, when it returns.
func Stream[In, Out any](procedure string, do func(ctx context.Context, in *In, send func(*Out) error) error, o ...connect.HandlerOption) (string, http.Handler) {
	return post(procedure, connect.NewServerStreamHandlerSimple(procedure, func(ctx context.Context, in *In, out *connect.ServerStream[Out]) error {
		return coded(do(ctx, in, out.Send))
	}, append(o, limits())...))
}

// limits bound what a client sends. There is no compression: connect bounds the memory that a bomb takes, but unpacks it to its end.
func limits() connect.HandlerOption {
	return connect.WithHandlerOptions(connect.WithReadMaxBytes(MaxMessage), connect.WithCompression("gzip", nil, nil))
}

// wholeTimeout makes the client's time a whole number of milliseconds, as the protocol wants it: E2B's SDK for Python sends that of a float with a
// fraction.
func wholeTimeout(h http.Header) {
	const name = "Connect-Timeout-Ms"
	if whole, fraction, cut := strings.Cut(h.Get(name), "."); cut && whole != "" && strings.Trim(fraction, "0123456789") == "" {
		h.Set(name, whole)
	}
}

func post(procedure string, h http.Handler) (string, http.Handler) {
	return "POST " + procedure, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wholeTimeout(r.Header)
		r.Body = http.MaxBytesReader(w, r.Body, MaxMessage+maxFraming) // connect reads a message that is too long to its end
		h.ServeHTTP(flusher{w}, r)
	})
}

// flusher has the method that connect looks for in a writer; those of httpserver.Door leave it to http.ResponseController.
type flusher struct{ http.ResponseWriter }

func (f flusher) Flush() { _ = http.NewResponseController(f.ResponseWriter).Flush() }

// Unwrap is for http.ResponseController.
func (f flusher) Unwrap() http.ResponseWriter { return f.ResponseWriter }

// Refuse answers a request with an error, in the form of the request's protocol.
func Refuse(w http.ResponseWriter, r *http.Request, err error) {
	_ = connect.NewErrorWriter().Write(w, r, coded(err)) // a client that has gone needs no answer
}

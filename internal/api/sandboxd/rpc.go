package sandboxd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	pb "agentvm/internal/api/sandboxd/processv1"
)

// This file is gRPC over net/http's HTTP/2 (github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md), as far as five methods with one request each
// need it. grpc-go would make agentvm a quarter larger: it links html/template, for pages that nobody opens.

// code is a status of gRPC.
type code int

const (
	codeCanceled           code = 1
	codeInvalidArgument    code = 3
	codeDeadlineExceeded   code = 4
	codeNotFound           code = 5
	codePermissionDenied   code = 7
	codeResourceExhausted  code = 8
	codeFailedPrecondition code = 9
	codeUnimplemented      code = 12
	codeInternal           code = 13
	codeUnavailable        code = 14
)

// statusError is an error with its status.
type statusError struct {
	code    code
	message string
}

func (e *statusError) Error() string { return e.message }

func errorf(c code, format string, args ...any) error {
	return &statusError{c, fmt.Sprintf(format, args...)}
}

// method is a method of the service: it reads the request by decode and sends answers.
type method func(ctx context.Context, decode func(proto.Message) error, send func(proto.Message) error) error

// unary makes a method of a function with one answer.
func unary[In any, Out proto.Message, P interface {
	*In
	proto.Message
}](do func(context.Context, P) (Out, error)) method {
	return func(ctx context.Context, decode, send func(proto.Message) error) error {
		in := P(new(In))
		if err := decode(in); err != nil {
			return err
		}
		out, err := do(ctx, in)
		if err != nil {
			return err
		}
		return send(out)
	}
}

const service = "/process.v1.ProcessService/"

// rpcHandler serves the methods.
func (s *Server) rpcHandler() http.Handler {
	methods := map[string]method{
		"Execute": unary(s.execute), "WriteStdin": unary(s.writeStdin), "SendSignal": unary(s.sendSignal), "ResizeTTY": unary(s.resize),
		"Start": func(ctx context.Context, decode, send func(proto.Message) error) error {
			var in pb.StartRequest
			if err := decode(&in); err != nil {
				return err
			}
			return s.start(ctx, &in, send)
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind := r.Header.Get("Content-Type")
		if r.ProtoMajor != 2 || r.Method != http.MethodPost || kind != "application/grpc" && kind != "application/grpc+proto" {
			http.Error(w, "this port is for gRPC", http.StatusUnsupportedMediaType)
			return
		}
		control := http.NewResponseController(w)
		w.Header().Set("Content-Type", "application/grpc")
		ctx := r.Context()
		err := error(nil)
		name, found := strings.CutPrefix(r.URL.Path, service)
		do := methods[name]
		limit, timeErr := timeout(r.Header.Get("Grpc-Timeout"))
		switch {
		case !found || do == nil:
			err = errorf(codeUnimplemented, "there is no method %s", r.URL.Path)
		case timeErr != nil:
			err = timeErr
		default:
			if limit >= 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, limit)
				defer cancel()
			}
			err = do(ctx, func(m proto.Message) error {
				_ = control.SetReadDeadline(time.Now().Add(pieceTime))
				err := decode(r.Body, m)
				_ = control.SetReadDeadline(time.Time{})
				return err
			}, func(m proto.Message) error {
				encoded, err := proto.Marshal(m)
				if err != nil {
					return errorf(codeInternal, "%v", err)
				}
				frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(encoded)))
				if _, err := w.Write(append(frame, encoded...)); err != nil {
					return err
				}
				return control.Flush()
			})
		}
		status := &statusError{}
		if err != nil && !errors.As(err, &status) {
			status = &statusError{codeOf(err), err.Error()}
		}
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", strconv.Itoa(int(status.code)))
		if status.message != "" {
			w.Header().Set(http.TrailerPrefix+"Grpc-Message", percentEncoded(status.message))
		}
		w.WriteHeader(http.StatusOK)
	})
}

// decode reads the one message of a request.
func decode(body io.Reader, m proto.Message) error {
	var head [5]byte
	if _, err := io.ReadFull(body, head[:]); err != nil {
		return errorf(codeInternal, "the request has no message: %v", err)
	}
	size := binary.BigEndian.Uint32(head[1:])
	switch {
	case head[0] != 0:
		return errorf(codeUnimplemented, "the request is compressed: send it as it is")
	case size > maxMessage:
		return errorf(codeResourceExhausted, "a request of %d bytes: want %d at most", size, maxMessage)
	}
	encoded, err := io.ReadAll(io.LimitReader(body, int64(size))) // grows with what comes, not with what was promised
	if err != nil || uint32(len(encoded)) != size {
		return errorf(codeInternal, "the request was cut: %v", err)
	}
	if err := proto.Unmarshal(encoded, m); err != nil {
		return errorf(codeInternal, "%v", err)
	}
	return nil
}

// timeout reads the header Grpc-Timeout: at most eight digits and a unit. Without one it is negative.
func timeout(text string) (time.Duration, error) {
	if text == "" {
		return -1, nil
	}
	unit := map[byte]time.Duration{
		'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond,
	}[text[len(text)-1]]
	n, err := strconv.ParseUint(text[:len(text)-1], 10, 32)
	if err != nil || unit == 0 || len(text) > 9 {
		return 0, errorf(codeInternal, "the header grpc-timeout is %q", text)
	}
	if unit == time.Hour {
		n = min(n, 1<<20) // a century, which a Duration can hold
	}
	return time.Duration(n) * unit, nil
}

// percentEncoded is a message as the trailer Grpc-Message has it.
func percentEncoded(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		if c < ' ' || c > '~' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

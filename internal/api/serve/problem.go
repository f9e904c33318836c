package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"agentvm/internal/api/kinds"
)

// Problem is what an answer with an error has (RFC 9457).
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Field  string `json:"field,omitempty" jsonschema:"of the request, which is wrong"`
}

func (p *Problem) Error() string { return p.Detail }

func problemf(status int, format string, args ...any) *Problem {
	return &Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: fmt.Sprintf(format, args...)}
}

// invalid is the error of a request that can never be right.
func invalid(format string, args ...any) *Problem {
	return problemf(http.StatusBadRequest, format, args...)
}

// InField is the error of a request one of whose fields is wrong. nil stays nil.
func InField(name string, err error) error {
	if err == nil {
		return nil
	}
	p := *invalid("%v", err)
	if found, is := errors.AsType[*Problem](err); is {
		p = *found
	}
	p.Field = name
	return &p
}

// problemOf gives an error its status.
func problemOf(err error) *Problem {
	var p *Problem
	if errors.As(err, &p) {
		return p
	}
	kind := kinds.Of(err)
	if kind == kinds.Ended { // with the server: else there is no client who reads the answer
		return problemf(http.StatusServiceUnavailable, "this was not finished before the server ended")
	}
	return problemf(statusOf[kind], "%v", err)
}

var statusOf = map[kinds.Kind]int{
	kinds.Internal: http.StatusUnprocessableEntity, // the VM, the guest or the host cannot do it
	kinds.Invalid:  http.StatusBadRequest,
	kinds.NotFound: http.StatusNotFound,
	kinds.Conflict: http.StatusConflict,
	kinds.Denied:   http.StatusForbidden,
	kinds.TooLarge: http.StatusRequestEntityTooLarge,
	kinds.Stalled:  http.StatusRequestTimeout,
	kinds.Timeout:  http.StatusGatewayTimeout,
}

// WriteProblem answers a request with an error.
func WriteProblem(w http.ResponseWriter, err error) {
	p := problemOf(err)
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}

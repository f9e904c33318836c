package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/images"
	"agentvm/vm"
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
	var access *vm.AccessError
	var module *http.MaxBytesError
	status := http.StatusUnprocessableEntity // the VM, the guest or the host cannot do it
	switch {
	case errors.Is(err, client.ErrNotFound), errors.Is(err, fs.ErrNotExist), errors.Is(err, images.ErrNotFound):
		status = http.StatusNotFound
	case errors.Is(err, client.ErrExists), errors.Is(err, client.ErrRunning), errors.Is(err, client.ErrNotRunning), errors.Is(err, egress.ErrPolicyChanged), errors.Is(err, fs.ErrExist):
		status = http.StatusConflict
	case errors.Is(err, fs.ErrPermission), errors.As(err, &access):
		status = http.StatusForbidden
	case errors.As(err, &module):
		status = http.StatusRequestEntityTooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		status = http.StatusRequestTimeout
	case errors.Is(err, context.Canceled): // by the server's end: else nobody waits for the answer
		return problemf(http.StatusServiceUnavailable, "this was not finished before the server ended")
	case errors.Is(err, context.DeadlineExceeded):
		status = http.StatusGatewayTimeout
	case errors.Is(err, fs.ErrInvalid):
		status = http.StatusBadRequest
	}
	return problemf(status, "%v", err)
}

// WriteProblem answers a request with an error.
func WriteProblem(w http.ResponseWriter, err error) {
	p := problemOf(err)
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}

package capnprpc

import (
	"agentvm/internal/guest/capnprpc/streamwire"
)

// Failing reads the failure from a method's results.
type Failing interface {
	Failure() (streamwire.Failure, error)
}

// Results writes a failure into a method's results.
type Results interface {
	NewFailure() (streamwire.Failure, error)
}

// Await waits for the answer to a call and returns its results, or the failure in them. An error of the connection or the context
// passes through fault, with what the call is for: [Conn.Fault] or a method like it. The results are valid until the call is released.
func Await[R Failing](fault func(what string, err error) error, what string, answer func() (R, error)) (R, error) {
	r, err := answer()
	if err != nil {
		return r, fault(what, err)
	}
	return r, FailureOf(r.Failure())
}

// Done is Await for a call that has no other result than a failure or none.
func Done[R Failing](fault func(what string, err error) error, what string, answer func() (R, error)) error {
	_, err := Await(fault, what, answer)
	return err
}

// Begin is the beginning of every method with parameters: it allocates the results and has read decode the parameters.
func Begin[R, W, P any](results func() (R, error), params func() (W, error), read func(W) (P, error)) (r R, p P, err error) {
	if r, err = results(); err != nil {
		return r, p, err
	}
	w, err := params()
	if err != nil {
		return r, p, err
	}
	p, err = read(w)
	return r, p, err
}

// Perform is the body of a method whose only result is a failure or none.
func Perform[R Results](results func() (R, error), do func() error) error {
	r, err := results()
	if err != nil {
		return err
	}
	return Reply(r, do())
}

// Reply writes err, if any, into the results. It returns an error only when the message cannot be written.
func Reply(r Results, err error) error {
	if err == nil {
		return nil
	}
	f, err2 := r.NewFailure()
	if err2 != nil {
		return err2
	}
	return SetFailure(f, err)
}

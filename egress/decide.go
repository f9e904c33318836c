package egress

import "syscall"

// Decide says whether a request is allowed, and why. It is pure: no clock, no look-up.
func (p Policy) Decide(r Request) Decision { return Decision{Reason: ReasonNone} }

// Explain is Decide for people, without a gate.
func (p Policy) Explain(host string, port uint16, protocol string) Decision { return Decision{} }

func (e *DeniedError) Error() string { return e.Decision.Message }

// Denied tells a refusal by policy from other errors.
func (e *DeniedError) Denied() bool { return true }

// Unwrap makes a refusal EACCES to errors.Is.
func (e *DeniedError) Unwrap() error { return syscall.EACCES }

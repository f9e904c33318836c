package wasi

import "context"

// systemKey finds the System in a context.
type systemKey struct{}

// systemContext carries a System. It is a type of its own, not context.WithValue, because every host call looks the
// System up: a type assertion is a comparison where a chain of values is a walk.
type systemContext struct {
	context.Context
	system *System
}

// Value returns the System for this package's key and asks the parent otherwise.
func (c *systemContext) Value(key any) any {
	if key == (systemKey{}) {
		return c.system
	}
	return c.Context.Value(key)
}

// WithSystem returns a context whose calls into a module concern s. Give it to every call of the instance's functions,
// instantiation included.
func WithSystem(ctx context.Context, s *System) context.Context {
	return &systemContext{Context: ctx, system: s}
}

// systemFrom returns the System of a call, or nil.
func systemFrom(ctx context.Context) *System {
	if c, ok := ctx.(*systemContext); ok {
		return c.system
	}
	s, _ := ctx.Value(systemKey{}).(*System)
	return s
}

//go:build !linux && !darwin && !windows

package daemon

import "errors"

// openProcess is empty: on these systems no daemon can be killed.
type openProcess struct{}

func openByNumber(int) (*openProcess, error) { return nil, errors.ErrUnsupported }

func (p *openProcess) terminate() error { return errors.ErrUnsupported }
func (p *openProcess) kill() error      { return errors.ErrUnsupported }
func (p *openProcess) close() error     { return nil }

func processBegan(int) (string, error) { return "", errors.ErrUnsupported }

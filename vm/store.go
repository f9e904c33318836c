package vm

import (
	"errors"
	"fmt"
	"os"

	"agentvm/images"
)

// openStore opens the image store. When nobody has said where it is to be and the usual place cannot be written, as in
// a container with a read-only root, a temporary one serves: everything works, but the image is got again each time.
func (p *parts) openStore(c Config) error {
	config := images.Config{Dir: c.StoreDir, Progress: c.Progress, Logger: c.Logger}
	var err error
	if p.store, err = config.Open(); err == nil || errors.Is(err, images.ErrMirror) {
		return err
	}
	if !errors.Is(err, images.ErrNoPlace) {
		err = fmt.Errorf("%w (set AGENTVM_STORE to a directory that can be written)", err)
	}
	if c.StoreDir != "" || os.Getenv("AGENTVM_STORE") != "" {
		return err
	}
	var tempErr error
	if p.temporary, tempErr = os.MkdirTemp("", "agentvm-"); tempErr != nil {
		return errors.Join(err, tempErr)
	}
	c.Logger.Warn("the image store cannot be used, so everything is got again each time", "error", err)
	config.Dir = p.temporary
	p.store, err = config.Open()
	return err
}

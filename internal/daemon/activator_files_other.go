//go:build !linux && !darwin

package daemon

import (
	"errors"
	"net"
	"os"
)

// passesFiles: without it, ports keep a VM awake.
const passesFiles = false

func sendFiles(*net.UnixConn, []*os.File) error      { return errors.ErrUnsupported }
func receiveFiles(*net.UnixConn) ([]*os.File, error) { return nil, errors.ErrUnsupported }
func awaitConnection(*os.File) error                 { return errors.ErrUnsupported }
func refuse(*os.File) int                            { return 0 }

//go:build !linux

package mount

import (
	"os"

	"agentvm/internal/host/errno"
)

// The guest's kernel asks for attributes and locks of the host only where it has events, on Linux.

func (*Server) getAttribute(string, string) ([]byte, error)    { return nil, errno.ENOSYS }
func (*Server) listAttributes(string) ([]byte, error)          { return nil, errno.ENOSYS }
func (*Server) setAttribute(string, string, []byte, int) error { return errno.ENOSYS }
func (*Server) removeAttribute(string, string) error           { return errno.ENOSYS }

func (*Server) isPlain(string) bool { return false }

func (*Server) isPlainIn(*os.File, string) bool { return false }

const hostLocks = false

func hostLock(*os.File, uint32) error { return errno.ENOSYS }

func hostLockRange(*os.File, lockedRange) error { return errno.ENOSYS }

func hostTestRange(*os.File, lockedRange) (lockedRange, error) { return lockedRange{}, errno.ENOSYS }

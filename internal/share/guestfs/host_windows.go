package guestfs

import (
	"errors"
	"os"
)

// hasStagingLocks is false: a copy that succeeds would have to remove its lock, and would fail where a file cannot be removed by its
// directory's handle, as in Wine.
const hasStagingLocks = false

func tryLock(*os.File) (bool, error) { return false, errors.ErrUnsupported }

// canKeepOwners reports whether the host's files have owners by number.
const canKeepOwners = false

//go:build unix && !linux

package errno

import "syscall"

// extra are the host's numbers that Linux has under another name. On Linux ENOTSUP and EOPNOTSUPP are one number.
var extra = map[syscall.Errno]Errno{syscall.ENOTSUP: EOPNOTSUPP}

package nat

import (
	"net"
	"syscall"
)

// InlineUrgent has reads of a TCP socket return the urgent byte among the others, where the peer has written it (SO_OOBINLINE), as
// RFC 6093 wants it. By default the system takes it out, and who copies a stream loses it. Other connections stay as they are. The option
// counts for what has arrived before, too, as long as it was not read.
func InlineUrgent(conn net.Conn) {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := socket.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = setInlineUrgent(fd) }) // without it only that byte is lost
	}
}

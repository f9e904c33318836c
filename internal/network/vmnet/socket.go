package vmnet

import (
	"context"
	"net"
	"path/filepath"
	"strconv"

	"agentvm/internal/host/unixsocket"
)

// socket returns the path of an address's socket.
func (s Store) socket(n Network, host byte) string {
	return filepath.Join(s.path(n.Name), strconv.Itoa(int(host))+".sock")
}

func (s Store) connect(ctx context.Context, n Network, host byte) (*net.UnixConn, error) {
	return unixsocket.Dial(ctx, s.socket(n, host))
}

// listen makes an address's socket, in the place of one that a killed process has left. The caller holds the lock, and no process listens there.
func (s Store) listen(n Network, host byte) (*net.UnixListener, error) {
	return unixsocket.Listen(s.socket(n, host))
}

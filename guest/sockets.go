//go:build linux

package guest

import "agentvm/rpc"

// Sockets lists the machine's TCP and UDP sockets; see rpc.Handler.
func (s *Supervisor) Sockets(*rpc.SocketQuery) ([]rpc.Socket, error) { return nil, nil }

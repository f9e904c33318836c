package netstack

import (
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// router tells the guest about IPv6 (RFC 4861, section 6.2).
type router struct {
	network *Network

	mu      sync.Mutex
	running bool
	timer   tcpip.Timer
	last    time.Time
}

func newRouter(n *Network) *router { return &router{network: n} }

func (r *router) start() {}
func (r *router) stop()  {}

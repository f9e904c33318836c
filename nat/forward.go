package nat

import (
	"context"
	"errors"
	"net"
)

// Forward listens on the host and leads what comes there to the guest's port, until ctx ends or Run does. It returns
// the address it listens at.
func (n *NAT) Forward(ctx context.Context, f Forward) (net.Addr, error) {
	return nil, errors.New("nat: port forwards do not work yet")
}

package vm

import (
	"context"

	"agentvm/rpc"
)

// Stats is a reading of the guest's counters, as the guest tells them: processor time, load, memory, processes, bytes and
// packets of its network card. Times are totals since boot.
type Stats = rpc.Stats

// Stats reads the guest's counters.
func (v *VM) Stats(ctx context.Context) (Stats, error) {
	client, err := v.guest(ctx)
	if err != nil {
		return Stats{}, err
	}
	stats, err := client.Stats(ctx)
	return stats, v.explain(err)
}

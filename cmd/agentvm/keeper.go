package main

import "agentvm/vm"

// keeper keeps the beginning and the end of what is written to it, half of its limit each. It holds at most half of the
// limit more than that.
type keeper struct {
	limit int // bytes; negative: none
	head  []byte
	tail  []byte // its last limit/2 bytes count
	total int64
}

func newKeeper(limit int) *keeper {
	if limit == 0 {
		limit = vm.DefaultMaxOutput
	}
	return &keeper{limit: limit}
}

// Write never fails.
func (k *keeper) Write(p []byte) (int, error) {
	k.total += int64(len(p))
	if k.limit < 0 {
		k.head = append(k.head, p...)
		return len(p), nil
	}
	room := min(len(p), k.limit-k.limit/2-len(k.head))
	k.head = append(k.head, p[:room]...)
	k.tail = append(k.tail, p[room:]...)
	if most := k.limit / 2; len(k.tail) > 2*most {
		k.tail = append(k.tail[:0], k.tail[len(k.tail)-most:]...)
	}
	return len(p), nil
}

// take returns what was kept and what is missing.
func (k *keeper) take() ([]byte, vm.Truncation) {
	tail := k.tail
	if most := max(k.limit/2, 0); len(tail) > most {
		tail = tail[len(tail)-most:]
	}
	missing := vm.Truncation{Dropped: k.total - int64(len(k.head)+len(tail))}
	if missing.Dropped > 0 {
		missing.Offset = len(k.head)
	}
	return append(k.head, tail...), missing
}

//go:build !linux

package top

import "time"

// processUse cannot be known here without help of others: the guest is asked.
func processUse(int) (cpu time.Duration, memory uint64, ok bool) { return 0, 0, false }

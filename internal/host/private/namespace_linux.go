package private

import (
	"os"
	"strconv"
	"strings"
	"sync"
)

// ownerIsUnknown reports whether uid is the number that a user namespace shows for all users that it has no number for. The host's root is
// one of them, and owns most folders on any way; that others of them cannot write there is checked by the mode. It counts only within a
// namespace: elsewhere the number is the user "nobody".
func ownerIsUnknown(uid uint32) bool {
	unknown := unknownOwner()
	return unknown != nil && *unknown == uid
}

// unknownOwner is that number; nil when all users have numbers here.
var unknownOwner = sync.OnceValue(func() *uint32 {
	mapped, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return nil
	}
	if f := strings.Fields(string(mapped)); len(f) == 3 && f[0] == "0" && f[1] == "0" && f[2] == "4294967295" {
		return nil
	}
	text, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	if err != nil {
		return nil
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return nil
	}
	uid := uint32(n)
	return &uid
})

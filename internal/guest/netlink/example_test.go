//go:build linux

package netlink_test

import (
	"fmt"

	"agentvm/internal/guest/netlink"
)

// How large may packets on the loopback interface be?
func ExampleRouter() {
	router, err := netlink.DialRouter()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = router.Close() }()
	lo, err := router.Link("lo")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lo.MTU >= 1280)
	// Output:
	// true
}

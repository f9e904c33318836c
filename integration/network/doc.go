// Package network tests the network of a real guest: Alpine's own programs in a booted VM, against real servers on the
// host's loopback, which they reach as a user's programs would, through the policy. It exports nothing.
package network

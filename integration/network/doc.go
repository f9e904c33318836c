// Package network has the tests of a real guest's network: Alpine's own programs in a booted VM, against real servers on the
// host's loopback, which they reach as a user's programs would, through the policy. It has nothing to import.
package network

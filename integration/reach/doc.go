// Package reach tests who reaches what in a VM, and from it: Alpine's own programs in booted VMs, real sockets of the host, and
// services on the host's loopback at the same ports, which nothing may hit. It exports nothing.
package reach

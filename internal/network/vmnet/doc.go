// Package vmnet implements the networks of VMs: VMs that join one reach each other by name, and no other VM does.
//
//	guest ─ its own Ethernet ─► nat ─► egress ─► Member.Dial ══ Unix socket ══► Member.Serve ─► nat ─ another Ethernet ─► guest
//
// There is no common Ethernet, so that no frame of a guest reaches another guest, and no guest can claim the address of another. A network is a
// subnet of 198.18.0.0/15 (RFC 2544), in which each member has an address; a connection or datagram to one is carried to the process of that
// VM, which alone delivers it to its guest. It passes the policies of both: the one's rules to deny, the other's network.listen. Echo requests are
// answered for a member whose process is there. Broadcast, multicast and other protocols do not pass, nor IPv6.
//
// STORE/networks/NAME/ has
//
//	network.json     subnet and key; who cannot read it, such as a confined process of a VM of another network, gets no connection
//	lock             held to change what is there
//	members/VM       the last byte of the address of a VM, which it keeps
//	N.sock           of the process of the VM with that byte
//
// A member is there as long as its process accepts connections: a killed one is gone at once, whatever files it leaves.
//
// The first message of a connection is a header with the key, at most 1 KiB of JSON in a frame, and its answer a frame with Linux's number of an
// error, 0 for none. Then each frame is a chunk of a stream or a datagram; a frame of kind end is the end of a stream. A stream that ends
// without it was reset.
package vmnet

// Package nat ends the guest's flows and begins them anew on the host: TCP connections, UDP sessions and echo requests
// of a [netstack.Network] become sockets that an [Egress] opens, and ports of the host lead into the guest.
//
//	guest ◄──► netstack ──► handler ──► limits ──► Intercept? ──► a function of the embedding program (DNS, notices)
//	                                       │
//	                                       └─────► Egress ──► host socket ◄──► splice with watermarks ◄──► guest
//	port of the host ──► Forward ──► limits ──► netstack dials the guest ──► the same splice
//
// # Truth
//
// The guest sees what a program on the host would see: its SYN is answered when the host's connection stands and not
// before, a refusal is a refusal, a reset a reset, a half-close a half-close, and silence is silence until the time-out.
//
// # Bounds
//
// Each flow holds at most [Config.HighMark] bytes towards the guest and one buffer of the same size, at most 256 KiB,
// while bytes come in; a host socket is not read while the guest owes more acknowledgements than that. What a guest
// sends waits in its connection's receive buffer, whose window closes. The number of everything a guest or a peer can
// cause is in [Limits]. A flow without payload ends after [Config.TCPIdle] or [Config.UDPIdle].
//
// # Concurrency and order
//
// All methods may be called from any goroutine. Flows run on goroutines of their own: two for a TCP connection.
// [NAT.Run] owns them and returns after the last. Bytes of one flow keep their order, events of one flow come as
// opened, then closed; nothing is promised between flows.
//
// # What it does not do
//
// It decides nothing about where a guest may go, opens no socket but the listeners of port forwards, looks into no
// payload and resolves no names.
package nat

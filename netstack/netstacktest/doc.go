// Package netstacktest is the other end of a network for tests: a second gVisor stack as the guest, configured as Linux
// would be, behind an in-memory link that can lose, delay, duplicate and reorder frames; or the bare link, for frames
// made by hand.
//
//	test ── DialContext, Listen, Ping ── Guest (gVisor) ── impairments ── Wire ── netstack.Network.Run
//
// It is for tests only and knows nothing of package netstack.
package netstacktest

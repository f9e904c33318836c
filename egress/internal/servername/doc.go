// Package servername follows what a client sends on one connection, and finds the name of the server that it asks for: in TLS the server_name
// of its ClientHello (RFC 6066 section 3), in HTTP/1 the Host of each request. Nothing is decrypted, changed or answered.
//
//	begin ─► 0x16: records ─► hello ─► records, until the client's next handshake message that is no ClientHello ─► anything
//	   └───► a letter: head ─► body or chunks ─► head ...
//
// It is strict, so that no server can read another name in the same bytes: what it is not sure of is an error. These are errors, too: a
// ClientHello without a name or with an encrypted one (ECH, RFC 9849; also the one that says nothing, GREASE, which looks the same), a second
// ClientHello with another name (RFC 8446 section 4.1.2), HTTP/2 without TLS, CONNECT, and requests that ask for another protocol (Upgrade).
//
// What TLS protects is not seen: a request inside can name another host than the connection did. ALPN has no influence.
//
// A Checker is not safe for concurrent use. It holds at most 32 KiB.
package servername

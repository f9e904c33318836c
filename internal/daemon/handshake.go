package daemon

import (
	"crypto/subtle"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// In the handshake each side sends one message, the client first. A message is its length in four bytes, big-endian, and so
// many bytes of JSON.
//
//	client ── {"version":1,"token":"64 hex digits","channel":"control"} ──► daemon
//	       ◄── {"version":1}, or {"version":1,"error":"..."} and the end ──
//
// The daemon answers only a client that has shown the token. Anything else ends the connection without an answer, from which a
// stranger could learn. No request of a browser is a valid message, because its first four bytes are letters.

const (
	maxHandshake  = 4096
	handshakeTime = 10 * time.Second
)

// Channel says what a connection is for. Control and Bulk are served alike; two connections keep bulk data from delaying control.
type Channel string

// Channels.
const (
	Control Channel = "control"
	Bulk    Channel = "bulk"
	Mount   Channel = "mount" // from the server of a mount that is to be added: see mountOffer
)

type hello struct {
	Version int     `json:"version"`
	Token   string  `json:"token"`
	Channel Channel `json:"channel"`
}

type welcome struct {
	Version int    `json:"version"`
	Error   string `json:"error,omitempty"`
}

// errToken is the daemon's reason to close a connection. The client does not learn it.
var errToken = errors.New("wrong token")

// admit does the daemon's side within handshakeTime.
func admit(conn net.Conn, token string) (Channel, error) {
	if err := conn.SetDeadline(time.Now().Add(handshakeTime)); err != nil {
		return "", err
	}
	var g hello
	if err := readMessage(conn, &g); err != nil {
		return "", err
	}
	answer, err := verify(g, token)
	if errors.Is(err, errToken) {
		return "", err
	}
	if err := errors.Join(err, writeMessage(conn, answer)); err != nil {
		return "", err
	}
	return g.Channel, conn.SetDeadline(time.Time{})
}

// verify checks a client's hello, the token first.
func verify(g hello, token string) (welcome, error) {
	w := welcome{Version: protocolVersion}
	var err error
	switch {
	case subtle.ConstantTimeCompare([]byte(g.Token), []byte(token)) != 1:
		return welcome{}, errToken
	case g.Version != protocolVersion:
		err = &VersionError{Client: g.Version, Daemon: protocolVersion}
	case g.Channel != Control && g.Channel != Bulk && g.Channel != Mount:
		err = fmt.Errorf("unknown channel %.80q", g.Channel)
	}
	if err != nil {
		w.Error = err.Error()
	}
	return w, err
}

// handshake does the client's side. The caller bounds its time.
func handshake(conn net.Conn, token string, channel Channel) error {
	if err := writeMessage(conn, hello{protocolVersion, token, channel}); err != nil {
		return err
	}
	var w welcome
	if err := readMessage(conn, &w); err != nil {
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("it closed the connection: what listens there is no daemon, or has another token: %w", io.EOF)
		}
		return err
	}
	switch {
	case w.Version != protocolVersion:
		return &VersionError{Client: protocolVersion, Daemon: w.Version}
	case w.Error != "":
		return fmt.Errorf("it refused: %.200q", w.Error)
	}
	return nil
}

func readMessage(r io.Reader, to any) error { return readMessageUpTo(r, to, maxHandshake) }

func readMessageUpTo(r io.Reader, to any, limit uint32) error {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	n := binary.BigEndian.Uint32(length[:])
	if n == 0 || n > limit {
		return fmt.Errorf("handshake begins with %q, which is no length", length[:])
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	if err := json.Unmarshal(b, to); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	return nil
}

func writeMessage(w io.Writer, from any) error {
	b, err := json.Marshal(from)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...))
	return err
}

package dns

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// maxStreams connections are served at a time; more are closed at once, which clients take for a reason to try again
	// (RFC 7766 section 6.2.2). With maxPipelined it bounds the replies that a guest can leave lying, of 64 KiB at worst.
	maxStreams = 64
	// maxPipelined queries of one connection are under way at a time. The next ones wait in the connection (section 6.2.1.1
	// wants them answered as they are ready, not in order).
	maxPipelined = 8
	// streamIdle is how long a connection may be silent, and how long a message may take to arrive or to leave.
	streamIdle = 10 * time.Second
)

// ServeConn answers the messages of a TCP connection (RFC 1035 section 4.2.2) until it ends, is idle for ten seconds, or
// ctx ends. Replies may be in another order than queries. It closes conn.
func (s *Server) ServeConn(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	defer s.noteStreams(-1)
	if s.noteStreams(1) > maxStreams {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()

	replies := make(chan []byte)
	written := make(chan struct{})
	go func() {
		defer close(written)
		defer cancel() // no query can be answered any more, so the upstreams need not be asked
		writeMessages(conn, replies)
	}()
	s.readMessages(ctx, conn, replies)
	close(replies)
	<-written
}

// noteStreams counts connections, and warns before there are too many.
func (s *Server) noteStreams(more int32) (now int32) {
	now = s.streams.Add(more)
	if s.streamsGauge.note(float64(now) / maxStreams) {
		s.config.Logger.Warn("the guest has many connections to its DNS server; above the limit they are closed", "limit", "dns-streams", "most", maxStreams)
	}
	return now
}

// readMessages returns when the queries have ended and the replies to them are given to the writer.
func (s *Server) readMessages(ctx context.Context, conn net.Conn, replies chan<- []byte) {
	var workers sync.WaitGroup
	defer workers.Wait()
	slots, who := make(chan struct{}, maxPipelined), clientOf(conn)
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		query, err := readMessage(conn)
		if err != nil {
			return
		}
		workers.Go(func() {
			defer func() { <-slots }()
			reply := s.reply(ctx, who, query, false)
			if reply == nil {
				return
			}
			select {
			case replies <- reply:
			case <-ctx.Done():
			}
		})
	}
}

func readMessage(conn net.Conn) ([]byte, error) {
	if err := conn.SetReadDeadline(time.Now().Add(streamIdle)); err != nil {
		return nil, err
	}
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return nil, err
	}
	rest := int64(binary.BigEndian.Uint16(length[:]))
	message := make([]byte, min(rest, largestQuery+1)) // one byte too many, for Reply to see
	if _, err := io.ReadFull(conn, message); err != nil {
		return nil, err
	}
	_, err := io.CopyN(io.Discard, conn, rest-int64(len(message)))
	return message, err
}

// writeMessages returns when replies is closed or a write fails. Length and message leave in one write, so usually in one
// segment (RFC 7766 section 8).
func writeMessages(conn net.Conn, replies <-chan []byte) {
	for reply := range replies {
		frame := binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(reply)), uint16(len(reply)))
		if conn.SetWriteDeadline(time.Now().Add(streamIdle)) != nil {
			return
		}
		if _, err := conn.Write(append(frame, reply...)); err != nil {
			return
		}
	}
}

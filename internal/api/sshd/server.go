// Package sshd is an SSH server for one VM that runs in the host's process and not in the guest: a thin layer on client.AnyVM. It serves one
// connection, which the caller has, and opens no socket.
//
//	ssh ── stdio ──► agentvm ssh-proxy: sshd ──► client.AnyVM
//	  session: exec, shell (session.go)          Start
//	  subsystem sftp (sftp.go)                   Files
//	  direct-tcpip (forward.go)                  DialContext: the VM's own loopback, and nothing else
//
// Clients show one of the keys of Config.Authorized; there are no passwords. Agents, X11 and ports that listen on the client's behalf are refused.
package sshd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"agentvm/client"
)

const (
	// handshakeTime is how long a client may take to show its key.
	handshakeTime = 30 * time.Second
	// maxChannels bounds the channels of a connection that are open at once.
	maxChannels = 64
)

// Config is that of a Server.
type Config struct {
	VM client.AnyVM
	// HostKey is what the server shows, Authorized the keys of clients.
	HostKey    ssh.Signer
	Authorized []ssh.PublicKey
	Logger     *slog.Logger // nil discards
}

// Server serves SSH connections to one VM.
type Server struct {
	config Config
	ssh    *ssh.ServerConfig
	log    *slog.Logger
}

var errKey = errors.New("this key is not authorized")

// New makes a Server.
func New(c Config) *Server {
	s := &Server{config: c, log: c.Logger}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.ssh = &ssh.ServerConfig{
		MaxAuthTries:  3,
		ServerVersion: "SSH-2.0-agentvm",
		PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			known := slices.ContainsFunc(c.Authorized, func(k ssh.PublicKey) bool { return slices.Equal(k.Marshal(), key.Marshal()) })
			if !known {
				return nil, errKey
			}
			return nil, nil
		},
	}
	s.ssh.AddHostKey(c.HostKey)
	return s
}

// Serve serves a connection until the client leaves or ctx ends, and closes it. The commands that the client has started end with it.
func (s *Server) Serve(ctx context.Context, conn net.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	late := time.AfterFunc(handshakeTime, func() { _ = conn.Close() })
	server, channels, requests, err := ssh.NewServerConn(conn, s.ssh)
	late.Stop()
	if err != nil {
		_ = conn.Close()
		return fmt.Errorf("ssh: %w", err)
	}
	var running sync.WaitGroup
	running.Go(func() { ssh.DiscardRequests(requests) }) // also those for ports that listen on the client's behalf
	slots := make(chan struct{}, maxChannels)
	for c := range channels {
		select {
		case slots <- struct{}{}:
		default:
			_ = c.Reject(ssh.ResourceShortage, "too many channels")
			continue
		}
		running.Go(func() {
			defer func() { <-slots }()
			s.channel(ctx, server.User(), c)
		})
	}
	cancel() // the commands of a client that has gone end
	_ = server.Close()
	running.Wait()
	return nil
}

func (s *Server) channel(ctx context.Context, user string, c ssh.NewChannel) {
	switch c.ChannelType() {
	case "session":
		s.session(ctx, user, c)
	case "direct-tcpip":
		s.forward(ctx, c)
	default:
		_ = c.Reject(ssh.UnknownChannelType, "want a session or direct-tcpip")
	}
}

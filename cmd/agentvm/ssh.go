package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"

	"agentvm/client"
	"agentvm/images"
	"agentvm/internal/api/sshd"
)

const sshConfigLong = `Prints a Host block for ~/.ssh/config, with which ssh, scp, sftp, rsync's -e ssh and editors reach a VM:

  agentvm ssh-config dev >> ~/.ssh/config
  ssh dev.agentvm
  scp report.html dev.agentvm:/root/

The server is agentvm on the host, started by ssh itself: no port is opened, and nothing is installed in the VM. A key of the store
is the only way in; ports are forwarded to the VM's own loopback alone, agents are not.`

// sshFiles are the files with which ssh reaches a VM.
type sshFiles struct {
	key, hostKey, known string
}

func sshFilesOf(name string) (f sshFiles, err error) {
	store, err := vms()
	if err != nil {
		return f, err
	}
	log, err := store.LogPath(name)
	if err != nil {
		return f, suggest(store, name, err)
	}
	dir, err := images.DefaultDir()
	if err != nil {
		return f, err
	}
	own := filepath.Dir(log)
	return sshFiles{filepath.Join(dir, "ssh", "id_ed25519"), filepath.Join(own, "ssh_host_ed25519_key"), filepath.Join(own, "ssh_known_hosts")}, nil
}

func (f sshFiles) keys(name string) (user, host ssh.Signer, err error) {
	if user, err = sshd.Key(f.key, "agentvm"); err != nil {
		return nil, nil, err
	}
	if host, err = sshd.Key(f.hostKey, sshHost(name)); err != nil {
		return nil, nil, err
	}
	return user, host, sshd.WriteKnownHost(f.known, sshHost(name), host.PublicKey())
}

// sshHost is what ssh knows a VM by.
func sshHost(name string) string { return name + ".agentvm" }

func (c *cli) sshConfigCommand() *cobra.Command {
	var user string
	command := &cobra.Command{
		Use: "ssh-config NAME", Short: "Print how ssh reaches a VM", Long: sshConfigLong, Example: "  agentvm ssh-config dev >> ~/.ssh/config",
		Args: counted(1, 1), ValidArgsFunction: completeNames(1),
		RunE: func(_ *cobra.Command, args []string) error {
			files, err := sshFilesOf(args[0])
			if err != nil {
				return err
			}
			if _, _, err := files.keys(args[0]); err != nil {
				return err
			}
			program, err := os.Executable()
			if err != nil {
				return err
			}
			_, err = c.stdout.WriteString(sshConfig(args[0], user, program, os.Getenv(storeVariable), files))
			return err
		},
	}
	command.Flags().StringVarP(&user, "user", "u", "root", "user in the VM")
	return command
}

// sshConfig is the block. Connections are shared, so that only the first of a minute pays for the handshake, where the socket's path is short
// enough for the system.
func sshConfig(name, user, program, store string, files sshFiles) string {
	proxy := shellQuoted(program) + " ssh-proxy " + name
	if store != "" {
		proxy = "env " + shellQuoted(storeVariable+"="+store) + " " + proxy
	}
	lines := []string{
		"Host " + sshHost(name),
		"  User " + user,
		"  ProxyCommand " + strings.ReplaceAll(proxy, "%", "%%"),
		"  HostKeyAlias " + sshHost(name),
		"  UserKnownHostsFile " + sshWord(files.known),
		"  GlobalKnownHostsFile /dev/null",
		"  StrictHostKeyChecking yes",
		"  IdentityFile " + sshWord(files.key),
		"  IdentitiesOnly yes",
		"  PreferredAuthentications publickey",
		"  ForwardAgent no",
		"  ForwardX11 no",
	}
	const hash, temporary, longest = 40, 18, 104 // of %C; what ssh appends while it binds; of a Unix socket's path
	if dir := filepath.Dir(files.key); runtime.GOOS != "windows" && len(dir)+1+hash+temporary < longest {
		lines = append(lines, "  ControlMaster auto", "  ControlPath "+sshWord(filepath.Join(dir, "%C")), "  ControlPersist 1m")
	}
	return strings.Join(lines, "\n") + "\n"
}

// shellQuoted quotes a word for the shell that ssh starts.
func shellQuoted(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// sshWord quotes a path for ssh's configuration.
func sshWord(path string) string { return `"` + filepath.ToSlash(path) + `"` }

// sshProxyCommand is what ssh starts.
func (c *cli) sshProxyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ssh-proxy NAME", Short: "Serve SSH for a VM on standard input and output", Hidden: true, Args: counted(1, 1), ValidArgsFunction: completeRunning(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			files, err := sshFilesOf(args[0])
			if err != nil {
				return err
			}
			user, host, err := files.keys(args[0])
			if err != nil {
				return err
			}
			return withVM(cmd.Context(), args[0], func(v *client.VM) error {
				server := sshd.New(sshd.Config{VM: v, HostKey: host, Authorized: []ssh.PublicKey{user.PublicKey()}, Logger: c.log})
				err := runForParent(cmd.Context(), func(ctx context.Context) error { return server.Serve(ctx, stdio{c.stdin, c.stdout}) })
				if err != nil {
					return fmt.Errorf("ssh-proxy is what ssh starts (agentvm ssh-config %s): %w", args[0], err)
				}
				return nil
			})
		},
	}
}

// stdio is a connection of this process's streams.
type stdio struct{ in, out *os.File }

func (s stdio) Read(p []byte) (int, error)  { return s.in.Read(p) }
func (s stdio) Write(p []byte) (int, error) { return s.out.Write(p) }
func (s stdio) Close() error {
	_ = s.in.Close()
	return s.out.Close()
}

func (stdio) LocalAddr() net.Addr              { return stdioAddr{} }
func (stdio) RemoteAddr() net.Addr             { return stdioAddr{} }
func (stdio) SetDeadline(time.Time) error      { return nil }
func (stdio) SetReadDeadline(time.Time) error  { return nil }
func (stdio) SetWriteDeadline(time.Time) error { return nil }

type stdioAddr struct{}

func (stdioAddr) Network() string { return "stdio" }
func (stdioAddr) String() string  { return "stdio" }

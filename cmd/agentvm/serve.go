package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"agentvm/client"
	api "agentvm/internal/api/serve"
	"agentvm/internal/httpserver"
	"agentvm/vm"
)

const serveLong = `Serves the VMs of the store over HTTP: make, start, stop and remove them, run commands and jobs, read and write files, change the network policy,
forward ports, make snapshots and forks. GET /openapi.json describes the operations, /healthz says that the server runs, and /metrics counts.

Clients send a key, "Authorization: Bearer KEY". --key-file, which only you may read, has one or more keys, each on a line, with a name for the log before
it if you like; without it the server makes a key and prints it on standard error. Whoever has a key can do with this server's VMs what its user can, but
reaches none of the host's files: mounts cannot be made over HTTP. --net, --allow and the like limit what VMs reach: a client can ask for less, and
a VM or snapshot that reaches more does not start.

The server listens at this host's loopback unless it has a certificate. VMs outlive it.`

const serveExample = `  agentvm serve
  agentvm serve --listen 127.0.0.1:8480 --key-file keys
  agentvm serve --listen 0.0.0.0:8443 --host vms.example.com --tls-cert cert.pem --tls-key key.pem --key-file keys
  curl -H "Authorization: Bearer $KEY" -d '{"name":"dev"}' http://127.0.0.1:8480/v1/vms`

// serveFlags are the flags of serve.
type serveFlags struct {
	listen, keys, certificate, key string
	hosts                          []string
	audit                          auditFlag
	most                           policyFlags
}

func (c *cli) serveCommand() *cobra.Command {
	var f serveFlags
	command := &cobra.Command{
		Use: "serve [flags]", Short: "Serve the VMs over HTTP", Long: serveLong, Example: serveExample, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s := newSession(shellInterruptWindow)
			ctx := s.begin(cmd.Context())
			defer s.end()
			return s.explain(c.serve(ctx, f))
		},
	}
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.listen, "listen", "127.0.0.1:8480", "listen at `ADDRESS:PORT`; port 0 takes one that is free")
	flags.StringVar(&f.keys, "key-file", "", "read the keys from a `FILE`: [NAME] KEY on each line")
	flags.StringArrayVar(&f.hosts, "host", nil, "a `NAME` under which clients reach the server, besides localhost and its address (may be repeated)")
	flags.StringVar(&f.certificate, "tls-cert", "", "serve HTTPS with the certificate of a PEM `FILE`")
	flags.StringVar(&f.key, "tls-key", "", "its private key, a PEM `FILE`")
	f.audit.register(flags)
	f.most.register(flags)
	return command
}

// serve serves until it is interrupted.
func (c *cli) serve(ctx context.Context, f serveFlags) (err error) {
	store, err := vms()
	if err != nil {
		return err
	}
	o := api.Options{Store: store, Saved: savedAPI{c, store}, Previews: previewAPI{}, Hosts: f.hosts, Version: version, Logger: c.log}
	generated := ""
	if f.most.set() {
		o.Most = new(vm.Network)
		if err := errors.Join(f.most.apply(o.Most), o.Most.Policy.Validate()); err != nil {
			return err
		}
	}
	if o.Keys, generated, err = serveKeys(f.keys); err != nil {
		return err
	}
	if (f.certificate == "") != (f.key == "") {
		return errors.New("--tls-cert and --tls-key go together")
	}
	if f.certificate != "" {
		certificate, err := serverCertificate(f.certificate, f.key)
		if err != nil {
			return err
		}
		o.Certificate = &certificate
	}
	audit, file, err := f.audit.open(c.log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	o.Audit = audit
	server, err := api.New(o)
	if err != nil {
		return err
	}
	return server.Serve(ctx, f.listen, func(url string) {
		fmt.Fprintf(c.stderr, "agentvm: serving %s\n", url)
		if generated != "" {
			fmt.Fprintf(c.stderr, "agentvm: the key for this time is %s\n", generated)
		}
	})
}

// serveKeys reads the keys, or makes one.
func serveKeys(path string) (keys httpserver.Keys, generated string, err error) {
	if path == "" {
		generated = rand.Text()
		return httpserver.Keys{{Name: "generated", Value: generated}}, generated, nil
	}
	text, err := readSecretFile(path)
	if err != nil {
		return nil, "", fmt.Errorf("--key-file: %w", err)
	}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || strings.HasPrefix(fields[0], "#"):
		case len(fields) == 1:
			keys = append(keys, httpserver.Key{Name: fmt.Sprintf("key %d", number), Value: fields[0]})
		case len(fields) == 2:
			keys = append(keys, httpserver.Key{Name: fields[0], Value: fields[1]})
		default:
			return nil, "", fmt.Errorf("--key-file: %s: line %d: want [NAME] KEY", path, number)
		}
	}
	if len(keys) == 0 {
		return nil, "", fmt.Errorf("--key-file: %s has no key", path)
	}
	return keys, "", nil
}

// serverKey reads the one key of a server from the file of a flag, or makes one.
func serverKey(flag, path string) (string, error) {
	if path == "" {
		return rand.Text(), nil
	}
	b, err := readSecretFile(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	key := strings.TrimSpace(string(b))
	if err := httpserver.CheckKey(key); err != nil {
		return "", fmt.Errorf("%s %s: %w", flag, path, err)
	}
	return key, nil
}

func serverCertificate(certificate, key string) (tls.Certificate, error) {
	one, err := readHostFile(certificate)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("--tls-cert: %w", err)
	}
	other, err := readSecretFile(key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("--tls-key: %w", err)
	}
	pair, err := tls.X509KeyPair(one, other)
	if err != nil {
		return pair, fmt.Errorf("--tls-cert, --tls-key: %w", err)
	}
	return pair, nil
}

// savedAPI are the snapshots for clients of the API.
type savedAPI struct {
	cli   *cli
	store *client.Store
}

// List implements serve.Saved.
func (s savedAPI) List(context.Context) (list []api.Snapshot, err error) {
	found, err := savedVMs()
	for _, e := range found {
		one := api.Snapshot{Name: e.Name, Created: e.Meta.Created, Comment: printable(e.Meta.Comment), Bytes: e.Allocated}
		if kept, err := readKept(e.Path); err == nil && client.CheckName(kept.Name) == nil {
			one.VM = kept.Name
		}
		list = append(list, one)
	}
	return list, err
}

// Create implements serve.Saved.
func (s savedAPI) Create(ctx context.Context, vm, snapshot, comment string) error {
	return s.cli.createSnapshot(ctx, vm, snapshot, comment)
}

// Restore implements serve.Saved.
func (s savedAPI) Restore(ctx context.Context, snapshot, name string, permit func(vm.Network) error) error {
	return restoreAs(ctx, s.store, snapshot, name, func(c *client.Config) error {
		c.Hostname, c.CaptureFile, c.NetworkLog, c.Metrics, c.Network.Forwards = "", "", "", "", nil // one VM has them
		return permit(c.Network)
	})
}

// Remove implements serve.Saved.
func (s savedAPI) Remove(ctx context.Context, snapshot string) error {
	return removeSaved(ctx, snapshot)
}

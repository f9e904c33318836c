package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/images"
	"agentvm/internal/api/e2b"
	"agentvm/internal/api/pod"
	"agentvm/internal/api/pod/ticket"
	api "agentvm/internal/api/serve"
	"agentvm/internal/httpserver"
	"agentvm/vm"
)

const podLong = `Boots a VM and serves it to the gateway of a Kubernetes cluster, which makes it a client's sandbox. It is the entry point of a warm pod; deploy/ has
the manifests. The pod ends its sandbox, and this command ends, when the gateway says so.

Requests need a ticket that the gateway has signed for this pod. --gateway-key is the public key; the pod has no secret of the cluster. Its
identifier is the variable POD_UID, which the pod's manifest sets from metadata.uid.`

const podExample = `  POD_UID=$UID agentvm pod --listen 0.0.0.0:8470 --gateway-key /etc/agentvm/gateway.pub --domain sandboxes.example.com`

// podFlags are the flags of pod.
type podFlags struct {
	startFlags
	listen, gateway, domain, user, seed string
	audit                               auditFlag
}

func (c *cli) podCommand() *cobra.Command {
	var f podFlags
	command := &cobra.Command{
		Use: "pod [flags]", Short: "Serve a VM to the gateway of a cluster", Long: podLong, Example: podExample, Args: cobra.NoArgs, Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s := newSession(shellInterruptWindow)
			ctx := s.begin(cmd.Context())
			defer s.end()
			return s.explain(c.servePod(ctx, &f))
		},
	}
	f.register(command)
	return command
}

func (f *podFlags) register(command *cobra.Command) {
	f.command = command
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.listen, "listen", "127.0.0.1:8470", "listen at `ADDRESS:PORT`; port 0 takes one that is free")
	flags.StringVar(&f.gateway, "gateway-key", "", "the gateways' public key, a PEM `FILE` (Ed25519)")
	flags.StringVar(&f.domain, "domain", "localhost", "servers in sandboxes are reached at PORT-ID.`DOMAIN`")
	flags.StringVar(&f.user, "user", "root", "the guest's `USER` who runs commands and owns files where the client names none")
	flags.StringVar(&f.seed, "seed", "", "copy the store in a `DIRECTORY` when AGENTVM_STORE is empty")
	flags.String("disk-size", "", "size of the disk that keeps the VM's files (default 10G)")
	f.audit.register(flags)
	f.registerVM(command)
	f.networkFlags.registerKept(flags)
}

// servePod serves until the first signal, or until the sandbox has ended.
func (c *cli) servePod(ctx context.Context, f *podFlags) (err error) {
	uid := os.Getenv("POD_UID")
	if uid == "" {
		return errors.New("the variable POD_UID has to be the pod's identifier: set it from the field metadata.uid")
	}
	text, err := readHostFile(f.gateway)
	if err != nil {
		return fmt.Errorf("--gateway-key: %w", err)
	}
	public, err := ticket.PublicKey(text)
	if err != nil {
		return fmt.Errorf("--gateway-key %s: %w", f.gateway, err)
	}
	if err := seedStore(f.seed); err != nil {
		return fmt.Errorf("--seed: %w", err)
	}
	store, err := vms()
	if err != nil {
		return err
	}
	config, err := f.config(store, pod.VMName)
	if err != nil {
		return err
	}
	if err := c.storeImage(ctx, &config); err != nil {
		return err
	}
	dir, err := images.DefaultDir()
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "sandbox.json")
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) && f.kept {
		if err := ignoreMissing(stopAndRemove(ctx, store, pod.VMName)); err != nil { // of a boot that was interrupted
			return err
		}
	}
	v, err := store.Start(ctx, pod.VMName, config, nil)
	if errors.Is(err, client.ErrRunning) { // its daemon has outlived the process that this one replaces
		v, err = store.Open(ctx, pod.VMName)
	}
	if err != nil {
		return err
	}
	all := &podVMs{store: store, log: c.log, first: v}
	defer all.end(ctx)
	for range warmCommands {
		if _, err := v.Run(ctx, vm.Command{Line: ": $(true)"}); err != nil {
			return err
		}
	}
	key := rand.Text()
	handler, err := api.New(api.Options{Store: store, Saved: savedAPI{c, store}, Most: &config.Network, Keys: httpserver.Keys{{Name: "gateway", Value: key}}, Version: version, Logger: c.log})
	if err != nil {
		return err
	}
	policy := config.Network.Policy
	if config.Network.Disabled {
		policy = egress.Policy{Mode: egress.None}
	}
	audit, log, err := f.audit.open(c.log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	server, err := pod.New(pod.Config{
		Audit: audit,
		VMs:   all, UID: uid, Gateways: public, Domain: f.domain, User: f.user, Policy: policy, CPUs: config.CPUs, Memory: cmp.Or(int64(config.Memory), vm.DefaultMemory),
		Key: key, API: localHost(handler.Handler()), Kept: file, Logger: c.log,
	})
	if err != nil {
		return err
	}
	continued, err := server.Continue(ctx)
	if err != nil {
		return err
	}
	return server.Serve(ctx, f.listen, func(url string) {
		fmt.Fprintf(c.stderr, "agentvm: serves a VM to gateways at %s (continued: %v)\n", url, continued)
	})
}

// localHost gives requests the host that the handler of serve expects. The gateway has checked the one that the client has used.
func localHost(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Host = "localhost"
		h.ServeHTTP(w, r)
	})
}

// warmCommands is how many commands a VM that waits for its sandbox has executed: their pages are in memory then, and their code is translated,
// without either of which the first one takes twice as long.
const warmCommands = 8

// seedStore copies a store, as a container's image has one, to where the VMs of this process are to be.
func seedStore(from string) error {
	if from == "" {
		return nil
	}
	to, err := images.DefaultDir()
	if err != nil {
		return err
	}
	if _, err := os.Stat(to); err == nil {
		return nil // a container that is started again
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	temporary := to + ".new"
	if err := os.RemoveAll(temporary); err != nil { // of a copy that was interrupted
		return err
	}
	if err := os.CopyFS(temporary, os.DirFS(from)); err != nil {
		return err
	}
	err = filepath.WalkDir(temporary, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			return os.Chmod(path, 0o700)
		}
		return os.Chmod(path, 0o600)
	})
	if err != nil {
		return err
	}
	return os.Rename(temporary, to)
}

func stopAndRemove(ctx context.Context, store *client.Store, name string) error {
	if _, err := store.Stop(ctx, name, 0); err != nil {
		return err
	}
	return store.Remove(ctx, name)
}

func ignoreMissing(err error) error {
	if errors.Is(err, client.ErrNotFound) {
		return nil
	}
	return err
}

// podVMs are the VM of a pod's first sandbox, which waits for it, and its forks.
type podVMs struct {
	store *client.Store
	log   *slog.Logger

	mu    sync.Mutex
	first *client.VM
}

// end ends the first VM.
func (m *podVMs) end(ctx context.Context) {
	m.mu.Lock()
	first := m.first
	m.mu.Unlock()
	_ = first.Close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if _, err := m.store.Stop(ctx, pod.VMName, 5*time.Second); err != nil && !errors.Is(err, client.ErrNotFound) {
		m.log.Warn("the VM was not stopped", "err", err)
	}
}

// Take implements pod.VMs. Variables are given to each command by the caller: the VM runs already.
func (m *podVMs) Take(ctx context.Context, _ []string, policy egress.Policy) (e2b.VM, error) {
	m.mu.Lock()
	first := m.first
	m.mu.Unlock()
	now, err := first.Policy(ctx)
	if err != nil {
		return nil, err
	}
	if now.String() != policy.String() {
		if _, err := first.SetPolicy(ctx, policy); err != nil {
			return nil, err
		}
	}
	return first, nil
}

// Open implements pod.VMs.
func (m *podVMs) Open(ctx context.Context, name string) (e2b.VM, error) {
	v, err := m.store.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Remove implements pod.VMs.
func (m *podVMs) Remove(ctx context.Context, name string) error {
	return stopAndRemove(ctx, m.store, cmp.Or(name, pod.VMName))
}

// Save implements pod.VMs.
func (m *podVMs) Save(ctx context.Context, name string, to pod.State, note []byte) error {
	st, err := m.state(to)
	if err != nil {
		return err
	}
	v, err := m.store.Open(ctx, cmp.Or(name, pod.VMName))
	if err != nil {
		return err
	}
	defer v.Close()
	_, err = st.Save(ctx, v, to.Name, client.SaveOptions{Replace: true, Since: to.Since, Note: note})
	return err
}

// Fetch implements pod.VMs.
func (m *podVMs) Fetch(ctx context.Context, from pod.State) (pod.Saved, error) {
	st, err := m.state(from)
	if err != nil {
		return nil, err
	}
	snapshot, err := st.Read(ctx, from.Name)
	if err != nil {
		return nil, err
	}
	return savedVM{snapshot, m, from.Creation == nil}, nil
}

func (m *podVMs) state(s pod.State) (*client.StateStore, error) {
	o := client.StateOptions{URL: s.URL, Key: s.Key, Logger: m.log}
	if s.Credentials != nil {
		o.Getenv = func(name string) string { return s.Credentials[name] }
	}
	return m.store.OpenState(o)
}

// savedVM is a VM of an object store.
type savedVM struct {
	*client.StateSnapshot
	vms  *podVMs
	same bool // it is the sandbox that was hibernated
}

// Restore implements pod.Saved.
func (s savedVM) Restore(ctx context.Context, policy egress.Policy, adopt []string) (e2b.VM, error) {
	m := s.vms
	// The VM that waits ends first, for the pod's memory is that of one VM, while what takes its place is fetched.
	ended := make(chan struct{})
	var endErr error
	go func() {
		defer close(ended)
		endErr = stopAndRemove(ctx, m.store, pod.VMName)
	}()
	v, err := s.StateSnapshot.Restore(ctx, pod.VMName, client.StateRestoration{
		KeepPrograms: true, SameIdentity: s.same, Adopt: adopt,
		Config: func(started client.Started) (client.Config, error) {
			config, err := started.Config()
			if errors.Is(err, client.ErrOpenNetwork) { // the pod's policy decides
				err = nil
			}
			config.Network.Policy = policy
			return config, err
		},
		Fetched: func() error {
			<-ended
			return endErr
		},
	})
	<-ended
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	was := m.first
	m.first = v
	m.mu.Unlock()
	_ = was.Close() // its VM is gone
	return v, nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"agentvm/internal/api/sandboxd"
	"agentvm/vm"
)

const sandboxdLong = `Boots a VM and serves it by the runtime API of Kubernetes' agent-sandbox (sandboxd): processes over gRPC, files and probes over HTTP. Commands run
in the VM, and files are the VM's; both belong to the directory --root-dir. The VM ends with the server, which ends on Ctrl-C or SIGTERM.

The protocol has no keys: whoever reaches the ports controls the VM. By default the ports are on this host's loopback. In a pod, where a readiness
probe comes from outside and a NetworkPolicy limits who else may connect, give --listen-host 0.0.0.0.`

const sandboxdExample = `  agentvm sandboxd
  agentvm sandboxd --listen-host 0.0.0.0 --allow pypi.org
  curl -T setup.py http://127.0.0.1:8080/v1/files/setup.py`

// sandboxdFlags are the flags of sandboxd.
type sandboxdFlags struct {
	vmFlags
	host, root, prefix string
	rest, grpc         uint16
	hosts              []string
	shutdown           time.Duration
	audit              auditFlag
}

func (c *cli) sandboxdCommand() *cobra.Command {
	var f sandboxdFlags
	command := &cobra.Command{
		Use: "sandboxd [flags]", Short: "Serve a VM by the API of Kubernetes' agent-sandbox", Long: sandboxdLong, Example: sandboxdExample, Args: cobra.NoArgs,
	}
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.host, "listen-host", "127.0.0.1", "listen at an IP `ADDRESS`")
	flags.Uint16Var(&f.grpc, "grpc-port", 9090, "`PORT` of processes; 0 takes one that is free")
	flags.Uint16Var(&f.rest, "rest-port", 8080, "`PORT` of files and probes; 0 takes one that is free")
	flags.StringVar(&f.root, "root-dir", "/workspace", "the `DIRECTORY` of the VM that clients see; it is made")
	flags.StringVar(&f.prefix, "metadata-env-prefix", "SANDBOX_", "GET /v1/metadata shows the variables of this process that begin with this prefix; names and values that look like secrets are left out")
	durationFlag(flags, &f.shutdown, "shutdown-timeout", "", 10*time.Second, "how long requests may take to end when the server ends")
	flags.StringArrayVar(&f.hosts, "host", nil, "a `NAME` under which clients reach the server, besides localhost and addresses (may be repeated)")
	f.audit.register(flags)
	f.register(command)
	return runs(command, func(ctx context.Context, _ []string) error {
		s := newSession(shellInterruptWindow)
		ctx = s.begin(ctx)
		defer s.end()
		return s.explain(c.serveSandbox(ctx, &f))
	})
}

// isSecretVariable reports whether a variable is probably a secret, which clients without a key are not told: by its name, or because its value is a
// URL with a password.
func isSecretVariable(name, value string) bool {
	name = strings.ToUpper(name)
	for _, word := range []string{"PASSWORD", "PASSWD", "SECRET", "TOKEN", "KEY", "CREDENTIAL", "COOKIE", "AUTH"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return urlPassword().MatchString(value)
}

var urlPassword = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`://[^/?#\s]*:[^/?#\s]*@`) })

// serveSandbox serves until it is interrupted.
func (c *cli) serveSandbox(ctx context.Context, f *sandboxdFlags) (err error) {
	told := make(map[string]string)
	for _, pair := range os.Environ() {
		if name, value, _ := strings.Cut(pair, "="); f.prefix != "" && strings.HasPrefix(name, f.prefix) && !isSecretVariable(name, value) {
			told[name] = value
		}
	}
	m, err := c.startWith(ctx, &f.vmFlags, func(*vm.Config) {})
	if err != nil {
		return err
	}
	defer m.Close()
	audit, file, err := f.audit.open(c.log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	server, err := sandboxd.New(ctx, sandboxd.Options{Audit: audit, VM: m.VM, Root: f.root, Metadata: told, Hosts: f.hosts, Shutdown: f.shutdown, Logger: c.log})
	if err != nil {
		return err
	}
	return server.Serve(ctx, f.host, f.rest, f.grpc, func(rest, rpc net.Addr) {
		fmt.Fprintf(c.stderr, "agentvm: serving files at http://%s and processes at %s\n", rest, rpc)
	})
}

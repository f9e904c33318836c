// Command agentvm-gateway serves E2B's and agentvm's HTTP API in front of a Kubernetes cluster: package fleet. It is a separate program, so that
// agentvm does not contain a client of Kubernetes.
package main

import (
	"context"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"agentvm/cmd/agentvm-gateway/fleet"
	"agentvm/internal/api/pod/ticket"
	"agentvm/internal/httpserver"
)

const long = `Serves E2B's and agentvm's HTTP API in front of a Kubernetes cluster. Each sandbox is a pod that a Deployment has kept warm; a client's request
makes it the client's. Any number of gateways serve at once, and none keeps state: start as many as you like, and kill any.

--key-file is the private key (Ed25519, PEM) that all gateways of a cluster share; pods have its public half. --tenants has TENANT KEY on each
line, one line for each key of a tenant. It is read again every five seconds: a key that is no longer in it stops working, and so does that of a line
that is wrong. Within a cluster the gateway uses the pod's service account, elsewhere --kubeconfig. TLS is the ingress' or the mesh's.

With --state, a paused sandbox leaves its pod for an object store, and continues in another pod. Each tenant has a folder of its own there, encrypted
with a key that is derived from the private key and the tenant's name. Credentials are in the variables that docs/guide/state.md lists; pods get them
with the request to write or to read a sandbox. Without it a sandbox is paused in its pod.

deploy/ has the manifests.`

const example = `  openssl genpkey -algorithm ed25519 -out gateway.pem
  agentvm-gateway --kubeconfig ~/.kube/config --namespace agentvm --key-file gateway.pem --tenants tenants --domain sandboxes.example.com`

// options are those of the command line.
type options struct {
	listen, metrics, kubeconfig, namespace, key, tenants, domain, identity, state, audit string
	hosts                                                                                []string
	port                                                                                 uint16
	memory                                                                               int64
	wait, keep                                                                           time.Duration
	verbose                                                                              bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "agentvm-gateway:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use: "agentvm-gateway [flags]", Short: "Serve sandboxes of a Kubernetes cluster", Long: long, Example: example, Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.serve(cmd.Context()) },
	}
	host, _ := os.Hostname()
	flags := c.Flags()
	flags.SortFlags = false
	flags.StringVar(&o.listen, "listen", "127.0.0.1:8480", "serve clients at `ADDRESS:PORT`")
	flags.StringVar(&o.metrics, "metrics", "", "serve counters for Prometheus at `ADDRESS:PORT` (default not at all)")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "the cluster, a `FILE` (default the service account of this pod)")
	flags.StringVar(&o.namespace, "namespace", "agentvm", "the `NAME` of the pods' namespace")
	flags.StringVar(&o.key, "key-file", "", "the gateways' private key, a PEM `FILE`")
	flags.StringVar(&o.tenants, "tenants", "", "the clients' keys, a `FILE`: TENANT KEY on each line")
	flags.StringVar(&o.domain, "domain", "localhost", "servers in sandboxes are reached at PORT-ID.`DOMAIN`")
	flags.StringVar(&o.state, "state", os.Getenv("AGENTVM_STATE"), "the object store of paused sandboxes, a `URL`: s3://BUCKET/PREFIX, gs://, azblob:// or file:///DIRECTORY (default $AGENTVM_STATE)")
	flags.DurationVar(&o.keep, "keep-paused", 0, "end sandboxes that have been in the object store for this time, such as 720h (default never)")
	flags.StringArrayVar(&o.hosts, "host", nil, "a `NAME` under which clients reach the gateway, besides localhost, addresses and api.DOMAIN (may be repeated)")
	flags.StringVar(&o.identity, "identity", host, "this gateway's `NAME` among the others")
	flags.Uint16Var(&o.port, "pod-port", 8470, "`PORT` at which pods serve")
	flags.Int64Var(&o.memory, "sandbox-memory", 512, "memory of a sandbox in MiB, as clients see it")
	flags.DurationVar(&o.wait, "wait", 30*time.Second, "how long a request waits for a warm pod")
	flags.StringVar(&o.audit, "audit", "", "append each request to a `FILE`, such as /dev/stdout, one JSON object a line")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "log more")
	return c
}

func (o *options) serve(ctx context.Context) error {
	level := slog.LevelInfo
	if o.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	// The loggers that libraries share: the client of Kubernetes writes as the gateway does, and net/http, which quotes what pods send, nowhere.
	klog.SetSlogLogger(log)
	stdlog.SetOutput(io.Discard)
	text, err := fleet.ReadSecretFile(o.key)
	if err != nil {
		return fmt.Errorf("--key-file: %w", err)
	}
	key, err := ticket.PrivateKey(text)
	if err != nil {
		return fmt.Errorf("--key-file %s: %w", o.key, err)
	}
	tenants, err := fleet.OpenTenants(o.tenants, log, time.Now)
	if err != nil {
		return fmt.Errorf("--tenants: %w", err)
	}
	config, err := clusterConfig(o.kubeconfig)
	if err != nil {
		return fmt.Errorf("the cluster: %w: give --kubeconfig FILE, or run in a pod with a service account", err)
	}
	config.QPS, config.Burst = 500, 1000 // the API server's own fairness decides
	config.UserAgent = "agentvm-gateway"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	var state *fleet.StateConfig
	if o.state != "" {
		state = &fleet.StateConfig{URL: o.state, Getenv: os.Getenv}
	}
	var audit func(httpserver.Record)
	if o.audit != "" {
		file, err := os.OpenFile(o.audit, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return fmt.Errorf("--audit: %w", err)
		}
		defer file.Close()
		audit = httpserver.AuditTo(file, func(err error) { log.Warn("the audit log is not complete", "err", err) })
	}
	g, err := fleet.New(fleet.Config{
		Audit:  audit,
		Client: client, Namespace: o.namespace, Identity: o.identity, Tenants: tenants.Tenants, Key: key, Domain: o.domain, Hosts: o.hosts, PodPort: o.port,
		State: state, KeepPaused: o.keep, Memory: o.memory << 20, Wait: o.wait, Logger: log,
	})
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return g.Run(ctx) })
	group.Go(func() error {
		return g.Serve(ctx, o.listen, func(url string) { log.Info("serving", "url", url, "namespace", o.namespace) })
	})
	if o.metrics != "" {
		group.Go(func() error { return g.ServeMetrics(ctx, o.metrics, func(string) {}) })
	}
	return group.Wait()
}

func clusterConfig(file string) (*rest.Config, error) {
	if file == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", file)
}

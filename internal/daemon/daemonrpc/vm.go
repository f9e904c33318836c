package daemonrpc

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"agentvm/egress"
	"agentvm/internal/daemon/daemonrpc/daemonwire"
	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/errno"
	"agentvm/vm"
)

// VM is what clients ask of the VM and the daemon passes on as it is. A verb of a VM is a method of vm.VM, one of the schema, its three parts here
// (the line of VM, the client's side and the daemon's), and one of client.VM.
type VM interface {
	Stats(ctx context.Context) (guestrpc.Stats, error)
	NetworkStats(ctx context.Context) (vm.NetworkStats, error)
	Policy(ctx context.Context) (egress.Policy, error)
	Explain(ctx context.Context, host string, port uint16, protocol string, addresses ...netip.Addr) (egress.Decision, error)
	// DiskWaits returns since when the guest waits for room on the host's disk, and for which file. The time is zero when it does not wait.
	DiskWaits() (since time.Time, path string)
	// Console returns the end of what the kernel printed.
	Console(ctx context.Context) ([]byte, error)
	// Files is the guest's bulk connection. The VM owns it; clients get its capability.
	Files(ctx context.Context) (*guestrpc.FilesClient, error)
	Sockets(ctx context.Context) ([]guestrpc.Socket, error)
}

// ofVM answers with what ask gets from the VM. answering is Handler.VM's.
func ofVM[R capnprpc.Results, T any](d *daemon, answering bool, results func() (R, error), letNext func(), ask func(VM) (T, error), write func(R, T) error) error {
	return answer(results, letNext, func() (value T, err error) {
		v, err := d.h.VM(answering)
		if err != nil {
			return value, err
		}
		return ask(v)
	}, write)
}

// Stats reads the guest's counters.
func (c *Client) Stats(ctx context.Context) (guestrpc.Stats, error) {
	future, release := c.daemon.Stats(ctx, nil)
	defer release()
	r, err := capnprpc.Await(c.fault, "stats", future.Struct)
	if err != nil {
		return guestrpc.Stats{}, err
	}
	w, err := r.Stats()
	return guestrpc.ReadStats(w), err
}

func (d *daemon) Stats(ctx context.Context, call daemonwire.Daemon_stats) error {
	return ofVM(d, true, call.AllocResults, call.Go, func(v VM) (guestrpc.Stats, error) { return v.Stats(ctx) },
		func(r daemonwire.Daemon_stats_Results, stats guestrpc.Stats) error {
			w, err := r.NewStats()
			if err == nil {
				guestrpc.WriteStats(w, stats)
			}
			return err
		})
}

// NetworkStats returns the network's counters.
func (c *Client) NetworkStats(ctx context.Context) (vm.NetworkStats, error) {
	future, release := c.daemon.NetworkStats(ctx, nil)
	defer release()
	return resultJSON[vm.NetworkStats](c, "network counters", future)
}

func (d *daemon) NetworkStats(ctx context.Context, call daemonwire.Daemon_networkStats) error {
	return ofVM(d, false, call.AllocResults, call.Go, func(v VM) (vm.NetworkStats, error) { return v.NetworkStats(ctx) }, setJSON)
}

// Policy returns the policy that holds now.
func (c *Client) Policy(ctx context.Context) (egress.Policy, error) {
	future, release := c.daemon.Policy(ctx, nil)
	defer release()
	return resultJSON[egress.Policy](c, "policy", future)
}

func (d *daemon) Policy(ctx context.Context, call daemonwire.Daemon_policy) error {
	return ofVM(d, false, call.AllocResults, call.Go, func(v VM) (egress.Policy, error) { return v.Policy(ctx) }, setJSON)
}

// Explain returns what the policy decides about a connection of the guest, as vm.VM.Explain does. protocol is "tcp" or "udp".
func (c *Client) Explain(ctx context.Context, host string, port uint16, protocol string, addresses ...netip.Addr) (egress.Decision, error) {
	future, release := c.daemon.Explain(ctx, func(w daemonwire.Daemon_explain_Params) error {
		w.SetPort(port)
		var texts []string
		for _, a := range addresses {
			texts = append(texts, a.String())
		}
		return errors.Join(w.SetHost(host), w.SetProtocol(protocol), capnprpc.WriteTexts(w.NewAddresses, texts))
	})
	defer release()
	return resultJSON[egress.Decision](c, "explain", future)
}

func (d *daemon) Explain(ctx context.Context, call daemonwire.Daemon_explain) error {
	host, err := call.Args().Host()
	if err != nil {
		return err
	}
	protocol, err := call.Args().Protocol()
	if err != nil {
		return err
	}
	texts, err := capnprpc.ReadTexts(call.Args().Addresses())
	if err != nil {
		return err
	}
	port := call.Args().Port()
	return ofVM(d, false, call.AllocResults, call.Go, func(v VM) (egress.Decision, error) {
		var addresses []netip.Addr
		for _, text := range texts {
			a, err := netip.ParseAddr(text)
			if err != nil {
				return egress.Decision{}, &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EINVAL, Message: err.Error()}
			}
			addresses = append(addresses, a)
		}
		return v.Explain(ctx, host, port, protocol, addresses...)
	}, setJSON)
}

// DiskWaits says since when the guest waits for room on the host's disk, and for which file. The time is zero when it does not wait.
func (c *Client) DiskWaits(ctx context.Context) (since time.Time, path string, err error) {
	future, release := c.daemon.Disk(ctx, nil)
	defer release()
	r, err := capnprpc.Await(c.fault, "disk", future.Struct)
	if err != nil {
		return time.Time{}, "", err
	}
	var read capnprpc.FieldReader
	return momentOf(&read)(r.Waits()), read.Text(r.Path()), read.Err
}

func (d *daemon) Disk(_ context.Context, call daemonwire.Daemon_disk) error {
	type wait struct {
		since time.Time
		path  string
	}
	return ofVM(d, false, call.AllocResults, call.Go, func(v VM) (w wait, err error) {
		w.since, w.path = v.DiskWaits()
		return w, nil
	}, func(r daemonwire.Daemon_disk_Results, w wait) error {
		return errors.Join(writeMoment(r.NewWaits, w.since), r.SetPath(w.path))
	})
}

// Console returns the end of what the guest's kernel printed. The guest chose these bytes.
func (c *Client) Console(ctx context.Context) ([]byte, error) {
	future, release := c.daemon.Console(ctx, nil)
	defer release()
	r, err := capnprpc.Await(c.fault, "console", future.Struct)
	if err != nil {
		return nil, err
	}
	return capnprpc.CopyData(r.Text())
}

func (d *daemon) Console(ctx context.Context, call daemonwire.Daemon_console) error {
	return ofVM(d, false, call.AllocResults, call.Go, func(v VM) ([]byte, error) { return v.Console(ctx) }, daemonwire.Daemon_console_Results.SetText)
}

// Files gives access to the guest's files over this connection. Close it before the connection.
func (c *Client) Files(ctx context.Context) (*guestrpc.FilesClient, error) {
	future, release := c.daemon.Files(ctx, nil)
	defer release()
	r, err := capnprpc.Await(c.fault, "open the guest's files", future.Struct)
	if err != nil {
		return nil, err
	}
	return guestrpc.NewFilesClient(c.conn, r.Files().AddRef()), nil
}

// Files passes the guest's capability on. The daemon forwards calls on it without decoding them.
func (d *daemon) Files(ctx context.Context, call daemonwire.Daemon_files) error {
	return ofVM(d, true, call.AllocResults, call.Go, func(v VM) (*guestrpc.FilesClient, error) { return v.Files(ctx) },
		func(r daemonwire.Daemon_files_Results, f *guestrpc.FilesClient) error {
			return r.SetFiles(f.Capability())
		})
}

// Sockets lists the guest's sockets, as Client.Sockets does.
func (c *Client) Sockets(ctx context.Context) ([]guestrpc.Socket, error) {
	future, release := c.daemon.Sockets(ctx, nil)
	defer release()
	r, err := capnprpc.Await(c.fault, "list sockets", future.Struct)
	if err != nil {
		return nil, err
	}
	return guestrpc.ReadSockets(r.Sockets())
}

func (d *daemon) Sockets(ctx context.Context, call daemonwire.Daemon_sockets) error {
	return ofVM(d, true, call.AllocResults, call.Go, func(v VM) ([]guestrpc.Socket, error) { return v.Sockets(ctx) },
		func(r daemonwire.Daemon_sockets_Results, list []guestrpc.Socket) error {
			return guestrpc.WriteSockets(r.NewSockets, list)
		})
}

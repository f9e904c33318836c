//go:build linux

package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"agentvm/internal/guest/guestrpc"
)

// measureIncoming compares processes that continue from a saved machine: agentvm from its base, QEMU from a file that it
// has migrated into. Both saved guests had booted and run a command; both get the same greeting, start and command then.
func measureIncoming(ctx context.Context, b *bench) error {
	if err := needTool(qemuName, qemuPackage); err != nil {
		return err
	}
	saved, err := b.kit.saveQEMU(ctx)
	if err != nil {
		return err
	}
	var ours, theirs costs
	for range b.rounds(21) {
		own, err := b.kit.warmOwn(ctx)
		if err != nil {
			return err
		}
		qemu, err := b.kit.warmQEMU(ctx, saved)
		if err != nil {
			return err
		}
		ours.add(own)
		theirs.add(qemu)
		b.report.cost("Snapshot/echo/agentvm", own)
		b.report.cost("Snapshot/echo/qemu", qemu)
	}
	own, qemu := ours.wall.times(1e3), theirs.wall.times(1e3)
	b.report.add(figure{name: "start from the base to `echo hi`", unit: "ms", value: own.median(), spread: own})
	b.report.add(figure{name: "QEMU's start from a file to `echo hi`", unit: "ms", value: qemu.median(), spread: qemu})
	b.report.add(figure{name: "start from the base, elapsed time", unit: "times QEMU's", value: own.over(qemu).median(), spread: own.over(qemu)})
	cpu := ours.cpu.over(theirs.cpu)
	b.report.add(figure{name: "start from the base, processor time", unit: "times QEMU's", value: cpu.median(), spread: cpu})
	return nil
}

// warmOwn is a process that continues from the base, until its output.
func (k *kit) warmOwn(ctx context.Context) (cost, error) {
	p, err := k.startProgram(ctx, "echo hi", "hi\n")
	if err != nil {
		return cost{}, err
	}
	return p.took, p.Wait()
}

// saveQEMU has QEMU migrate a guest that has booted into a file, whose name it returns.
func (k *kit) saveQEMU(ctx context.Context) (string, error) {
	monitor, file := k.path("monitor"), k.path("migrated")
	g, err := k.startQEMU(ctx, qemuNetwork(), "-qmp", "unix:"+monitor+",server=on,wait=off")
	if err != nil {
		return "", err
	}
	defer g.close()
	if _, err := g.sh(ctx, "true"); err != nil {
		return "", err
	}
	time.Sleep(settleTime)
	if err := migrate(ctx, monitor, "exec:cat >"+file); err != nil {
		return "", fmt.Errorf("have QEMU save its guest: %w", err)
	}
	return file, nil
}

// migrate moves the guest behind a QEMU Machine Protocol socket.
func migrate(ctx context.Context, socket, to string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	q := &qmp{json.NewEncoder(conn), bufio.NewScanner(conn)}
	if err := errors.Join(q.do("qmp_capabilities", nil, nil), q.do("migrate", map[string]string{"uri": to}, nil)); err != nil {
		return err
	}
	for {
		var state struct{ Status string }
		if err := q.do("query-migrate", nil, &state); err != nil {
			return err
		}
		switch state.Status {
		case "completed":
			return nil
		case "failed", "cancelled":
			return errors.New(state.Status)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// qmp is a connection to a QEMU's monitor.
type qmp struct {
	out *json.Encoder
	in  *bufio.Scanner
}

// do executes a command and decodes its answer; events in between are skipped.
func (q *qmp) do(command string, arguments, answer any) error {
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	if err := q.out.Encode(request); err != nil {
		return err
	}
	for q.in.Scan() {
		var m struct {
			Return json.RawMessage
			Error  *struct{ Desc string }
		}
		if err := json.Unmarshal(q.in.Bytes(), &m); err != nil {
			return err
		}
		switch {
		case m.Error != nil:
			return fmt.Errorf("%s: %s", command, m.Error.Desc)
		case m.Return != nil && answer != nil:
			return json.Unmarshal(m.Return, answer)
		case m.Return != nil:
			return nil
		}
	}
	return errors.Join(q.in.Err(), fmt.Errorf("%s: no answer", command))
}

// warmQEMU is a process of QEMU that continues from the file, until its output.
func (k *kit) warmQEMU(ctx context.Context, file string) (cost, error) {
	return k.qemuUntilOutput(ctx, "-incoming", "exec:cat "+file)
}

// restored tells a guest that it has been started before.
func restored() *guestrpc.Restored {
	r := &guestrpc.Restored{Entropy: make([]byte, 64), Generation: 1}
	_, _ = rand.Read(r.Entropy)
	_, _ = rand.Read(r.GenerationID[:])
	return r
}

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"agentvm/client"
	"agentvm/images"
	"agentvm/vm"
)

// isolatedName is the guest's host name, the same as without --isolate.
const isolatedName = "agentvm"

// isolated is a fresh VM in a process of its own.
func (c *cli) isolated(f *execFlags) openTarget {
	return func(ctx context.Context, s *session) (*target, error) {
		v, err := c.startIsolated(ctx, f)
		if err != nil {
			return nil, err
		}
		return &target{start: c.startIn(v.VM), end: func(result *vm.Result, err error) (denials, error) {
			defer v.Close()
			if err == nil {
				err = s.explain(c.finishChanges(ctx, f.changes, v.Changes, result))
			}
			err = adviseEnded(v.Name(), err)
			var status exitStatus
			if err != nil && !errors.As(err, &status) {
				err = v.EndReason(err)
			}
			if err != nil {
				return denials{}, err
			}
			c.printInstructions(ctx, v, time.Time{})
			return deniedSince(ctx, v, time.Time{}, f.policyFile), nil
		}}, nil
	}
}

func (c *cli) startIsolated(ctx context.Context, f *execFlags) (*client.Isolated, error) {
	dir, err := images.DefaultDir()
	if err != nil {
		return nil, err
	}
	config := client.Config{Config: vm.Config{StoreDir: dir, Hostname: isolatedName}, DiskSize: -1, Debug: c.debug}
	flags := startFlags{vmFlags: f.vmFlags, command: f.command}
	if err := flags.change(&config, isolatedName); err != nil {
		return nil, err
	}
	if err := f.changes.check(config.Mounts); err != nil {
		return nil, err
	}
	if err := c.storeImage(ctx, &config); err != nil {
		return nil, err
	}
	progress := func(_ slog.Level, text string) {
		if text != "booting" && !f.quiet {
			fmt.Fprintln(c.stderr, "agentvm:", printable(text))
		}
	}
	v, err := client.StartIsolated(ctx, client.StoreOptions{Dir: dir, Version: version}, config, progress)
	if err != nil {
		return nil, adviseStart(isolatedName, config.Image, err)
	}
	ports, err := v.Forwards(ctx)
	publish, _ := f.flags.GetStringArray("publish")
	for i, text := range publish { // where one listens whose port was left to the system
		if err == nil && len(ports) == len(publish) && (strings.HasPrefix(text, "0:") || strings.Contains(text, ":0:")) {
			guest := text[strings.LastIndexByte(text, ':')+1:]
			guest, _, _ = strings.Cut(guest, "/")
			fmt.Fprintf(c.stderr, "agentvm: %s leads to port %s of the VM\n", ports[i], guest)
		}
	}
	return v, nil
}

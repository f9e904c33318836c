//go:build linux

package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"agentvm/internal/storage/snapshot"
	"agentvm/vm"
)

// measureSnapshot measures what need not boot: VMs that continue from the base of their kind, from a running VM, or from a
// file.
func measureSnapshot(ctx context.Context, b *bench) error {
	if err := b.kit.build(ctx); err != nil {
		return err
	}
	for _, measure := range []func(context.Context, *bench) error{
		measureWarmProcess, measureWarmLibrary, measureForks, measureForkMemory, measureProcessMemory, measureSnapshotFile, measureIncoming,
	} {
		if err := measure(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// runs is how often something is done whose percentiles are wanted.
func (b *bench) runs() int {
	if b.quick {
		return 10
	}
	return 100
}

// percentiles adds figures of which the bar is for the median. The readings are in milliseconds.
func (b *bench) percentiles(benchmark, name string, took samples, limit bar) {
	for _, one := range took {
		b.report.value(benchmark, one, "ms")
	}
	b.report.add(figure{name: name + ", median", unit: "ms", value: took.median(), spread: took, bar: limit})
	b.report.add(figure{name: name + ", 95th percentile", unit: "ms", value: took.quantile(0.95)})
	b.report.add(figure{name: name + ", 99th percentile", unit: "ms", value: took.quantile(0.99)})
}

// measureWarmProcess runs whole processes of agentvm, now and then one that boots.
func measureWarmProcess(ctx context.Context, b *bench) error {
	run := func(args ...string) (cost, error) {
		c := b.kit.command(ctx, append(append([]string{"exec", "--image", b.kit.image.Name}, args...), "true")...)
		start := time.Now()
		_, err := output(c)
		took := cost{wall: time.Since(start)}
		if err == nil {
			took.cpu = c.ProcessState.UserTime() + c.ProcessState.SystemTime()
		}
		return took, err
	}
	for range 3 { // the first leaves the base
		if _, err := run(); err != nil {
			return err
		}
	}
	var warm, cold costs
	for i := range b.runs() {
		took, err := run()
		if err != nil {
			return err
		}
		warm.add(took)
		if i%10 == 0 {
			if took, err = run("--cold"); err != nil {
				return err
			}
			cold.add(took)
		}
	}
	b.percentiles("Snapshot/exec-true", "`agentvm exec true`, whole process", warm.wall.times(1e3), atMost(60))
	cpu := warm.cpu.times(1e3)
	b.report.add(figure{name: "`agentvm exec true`, processor time", unit: "ms", value: cpu.median(), spread: cpu})
	booted := cold.wall.times(1e3)
	b.report.add(figure{name: "`agentvm exec --cold true`, whole process", unit: "ms", value: booted.median(), spread: booted})
	return nil
}

// measureWarmLibrary starts VMs in this process, in which no other is.
func measureWarmLibrary(ctx context.Context, b *bench) error {
	var ready, first samples
	for i := range 3 + b.runs() {
		start := time.Now()
		g, err := b.kit.startOwn(ctx)
		if err != nil {
			return err
		}
		started := time.Since(start)
		_, err = g.sh(ctx, "true")
		if ended := time.Since(start); i >= 3 {
			ready, first = append(ready, milliseconds(started)), append(first, milliseconds(ended))
		}
		g.close()
		if err != nil {
			return err
		}
	}
	b.percentiles("Snapshot/start", "vm.Start", ready, bar{})
	b.percentiles("Snapshot/start-true", "vm.Start until the first command has ended", first, atMost(25))
	return nil
}

// measureSnapshotFile writes a VM to a file, and starts others from it.
func measureSnapshotFile(ctx context.Context, b *bench) error {
	g, err := b.kit.startOwn(ctx)
	if err != nil {
		return err
	}
	defer g.close()
	if _, err := g.sh(ctx, "true"); err != nil {
		return err
	}
	path := b.kit.path("saved.snap")
	var written, ready, first samples
	for range b.runs() {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		start := time.Now()
		if _, err := g.vm.Snapshot(ctx, path, vm.SnapshotOptions{}); err != nil {
			return err
		}
		written = append(written, milliseconds(time.Since(start)))
		start = time.Now()
		v, err := vm.Restore(ctx, path, vm.Config{StoreDir: b.kit.store}, vm.RestoreOptions{})
		if err != nil {
			return err
		}
		ready = append(ready, milliseconds(time.Since(start)))
		_, err = (&ownGuest{v}).sh(ctx, "true")
		first = append(first, milliseconds(time.Since(start)))
		_ = v.Close()
		if err != nil {
			return err
		}
	}
	b.percentiles("Snapshot/write", "snapshot of a 256 MiB VM", written, atMost(500))
	b.percentiles("Snapshot/restore", "vm.Restore of it", ready, bar{})
	b.percentiles("Snapshot/restore-true", "vm.Restore of it until the first command has ended", first, bar{})
	return measureFileSize(ctx, b, path)
}

// measureFileSize tells what a snapshot takes, of the store and of a line.
func measureFileSize(ctx context.Context, b *bench, path string) error {
	f, err := snapshot.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var exported byteCount
	start := time.Now()
	if err := f.Export(ctx, &exported); err != nil {
		return err
	}
	took := milliseconds(time.Since(start))
	allocated, err := diskUse(path)
	if err != nil {
		return err
	}
	for _, size := range []struct {
		name, figure string
		bytes        float64
		bar          bar
	}{
		{"allocated", "file of a snapshot of a 256 MiB VM, what it takes", allocated, bar{}},
		{"exported", "the same exported", float64(exported), atMost(40)},
	} {
		b.report.value("Snapshot/file/"+size.name, size.bytes/1e6, "MB")
		b.report.add(figure{name: size.figure, unit: "MB", value: size.bytes / 1e6, bar: size.bar})
	}
	b.report.value("Snapshot/export", took, "ms")
	b.report.add(figure{name: "the time to export it", unit: "ms", value: took})
	return nil
}

// byteCount counts what is written.
type byteCount int64

func (n *byteCount) Write(p []byte) (int, error) {
	*n += byteCount(len(p))
	return len(p), nil
}

// diskUse is what a file takes of its file system, in bytes.
func diskUse(path string) (float64, error) {
	var stat unix.Stat_t
	err := unix.Stat(path, &stat)
	return float64(stat.Blocks) * 512, err
}

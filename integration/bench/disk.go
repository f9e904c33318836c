//go:build linux

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"agentvm/vm"
)

const (
	copiedFiles = 10_000
	syncs       = 300
)

// appendSource appends blocks to a file and syncs each; it prints the mean time of one in microseconds.
const appendSource = `#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv) {
    static char block[4096] = "data";
    int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600), n = atoi(argv[2]);
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int i = 0; i < n; i++)
        if (fd < 0 || write(fd, block, sizeof block) != sizeof block || fsync(fd))
            return 1;
    clock_gettime(CLOCK_MONOTONIC, &to);
    printf("%.1f", ((to.tv_sec - from.tv_sec) * 1e9 + to.tv_nsec - from.tv_nsec) / 1e3 / n);
}
`

// measureDisk copies files into a VM's disk and out of it, and syncs small writes to it.
func measureDisk(ctx context.Context, b *bench) error {
	config := b.kit.config()
	config.Disk = b.kit.path("copies.disk")
	if err := vm.CreateDisk(config.Disk, 0); err != nil {
		return err
	}
	g, err := startOwn(ctx, config)
	if err != nil {
		return err
	}
	defer g.close()
	if err := b.measureCopies(ctx, g); err != nil {
		return err
	}
	return b.measureSyncs(ctx, g)
}

// measureCopies compares CopyTo and CopyFrom with tar in the guest, which gets the same files as an archive.
func (b *bench) measureCopies(ctx context.Context, g *ownGuest) error {
	count := copiedFiles
	if b.quick {
		count /= 10
	}
	from, archive, err := smallFiles(b.kit.path("small"), count)
	if err != nil {
		return err
	}
	var in, out samples
	for i := range b.rounds(3) {
		if _, err := g.sh(ctx, "rm -rf /root/a /root/b; mkdir /root/a; sync"); err != nil {
			return err
		}
		to := b.kit.path("out" + strconv.Itoa(i))
		var took [3]cost
		for j, do := range []func() error{
			func() error {
				r, err := g.vm.Run(ctx, vm.Command{Line: "tar x -C /root/a", Stdin: bytes.NewReader(archive)})
				if err != nil {
					return err
				}
				return failed("tar", r.ExitCode, r.Stderr)
			},
			func() error { _, err := g.vm.Files().CopyTo(ctx, from, "/root/b", vm.CopyOptions{}); return err },
			func() error { _, err := g.vm.Files().CopyFrom(ctx, "/root/b", to, vm.CopyOptions{}); return err },
		} {
			if took[j], err = timed(g.pid(), do); err != nil {
				return err
			}
			b.report.cost("Copy/"+[]string{"tar", "in", "out"}[j], took[j])
		}
		in, out = append(in, took[1].wall.Seconds()/took[0].wall.Seconds()), append(out, took[2].wall.Seconds()/took[0].wall.Seconds())
	}
	if out, err := output(exec.CommandContext(ctx, "diff", "-r", from, b.kit.path("out0"))); err != nil {
		return fmt.Errorf("the copy differs: %w: %.200s", err, out)
	}
	b.report.add(figure{page: storagePage, name: "cp of 10,000 files into a VM's disk", unit: "times tar's time in it", value: in.median(), spread: in, bar: atMost(2)})
	b.report.add(figure{page: storagePage, name: "cp of them out of it", unit: "times tar's time in it", value: out.median(), spread: out, bar: atMost(2)})
	return nil
}

// smallFiles makes files of up to 4 KB, a hundred in a directory, and an archive of them.
func smallFiles(dir string, count int) (string, []byte, error) {
	random := rand.New(rand.NewPCG(1, 2))
	for i := range count {
		path := filepath.Join(dir, strconv.Itoa(i/100), strconv.Itoa(i))
		content := make([]byte, 1+random.IntN(4000))
		for j := range content {
			content[j] = byte(random.Uint32())
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644)); err != nil {
			return "", nil, err
		}
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err := errors.Join(w.AddFS(os.DirFS(dir)), w.Close())
	return dir, archive.Bytes(), err
}

// measureSyncs compares a block that is appended and synced in the guest with one on the host's disk that has the VM's.
func (b *bench) measureSyncs(ctx context.Context, g *ownGuest) error {
	hostProgram, program, err := b.kit.buildBoth(ctx, "append", appendSource)
	if err == nil {
		err = g.put(ctx, "/root/append", program)
	}
	if err != nil {
		return err
	}
	var ours, host, beyond samples
	for range b.rounds(5) {
		theirs, err := output(exec.CommandContext(ctx, hostProgram, b.kit.path("appended"), strconv.Itoa(syncs)))
		if err != nil {
			return err
		}
		text, err := g.sh(ctx, "/root/append /root/appended "+strconv.Itoa(syncs))
		if err != nil {
			return err
		}
		var at [2]float64
		for i, text := range []string{theirs, text} {
			if at[i], err = strconv.ParseFloat(strings.TrimSpace(text), 64); err != nil {
				return err
			}
		}
		host, ours = append(host, at[0]), append(ours, at[1])
		beyond = append(beyond, (at[1]-2*at[0])/1000)
		b.report.cost("Sync/host", cost{wall: time.Duration(at[0] * 1000)})
		b.report.cost("Sync/agentvm", cost{wall: time.Duration(at[1] * 1000)})
	}
	b.report.add(figure{page: storagePage, name: "4 KiB appended and synced on the host", unit: "us", value: host.median(), spread: host})
	b.report.add(figure{page: storagePage, name: "the same on the VM's disk", unit: "us", value: ours.median(), spread: ours})
	b.report.add(figure{page: storagePage, name: "the same, beyond twice the host's time", unit: "ms", value: beyond.median(), spread: beyond, bar: atMost(1)})
	return nil
}

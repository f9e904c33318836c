//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"agentvm/vm"
)

// Sizes of what the mounts show.
const (
	treeDirs, treeFiles = 60, 22    // directories, and files in each
	manyFiles           = 40_000    // in one directory
	bigFile             = 64 << 20  // bytes
	treeFileMax         = 24 << 10  // bytes
	settle              = "sleep 2" // longer than names and attributes are valid
	dropCaches          = "sync; echo 3 >/proc/sys/vm/drop_caches"
)

// fileWork is a command in a directory, and what it is compared with.
type fileWork struct {
	name, figure string
	before       string // not measured
	line         string
	own          bar     // for the time in the mount as a multiple of that on the guest's own disk
	time         bar     // for the time in the mount in seconds
	bytes        float64 // when the speed counts: how many the command moves
	speed        bar     // in MB/s
	rounds       int
	elsewhere    bool // it is not done on the own disk
}

const (
	grepAll = "grep -rF --exclude-dir=.git zzzzz . || true"
	catAll  = "find . -name .git -prune -o -type f -print0 | xargs -0 cat >/dev/null"
	copyBig = "dd if=../rw/big of=/dev/null bs=1M 2>/dev/null"
	makeN   = "i=0; while [ $i -lt %d ]; do : >../rw/d/f$i; i=$((i+1)); done"
)

var fileWorks = []fileWork{
	{name: "grep-cold", figure: "`grep -r`, cold", before: dropCaches, line: grepAll, own: atMost(2.5)},
	{name: "grep-warm", figure: "`grep -r`, warm", before: settle, line: grepAll, own: atMost(1.3)},
	{name: "status-cold", figure: "`git status`, cold", before: "git status >/dev/null; " + dropCaches, line: "git status >/dev/null", own: atMost(2.5)},
	{name: "status-warm", figure: "`git status`, warm", before: "git status >/dev/null; " + settle, line: "git status >/dev/null", own: atMost(1.3)},
	{name: "ls-cold", figure: "`ls -lR`, cold", before: dropCaches, line: "ls -lR . >/dev/null", own: atMost(2.5)},
	{name: "ls-warm", figure: "`ls -lR`, warm", before: settle, line: "ls -lR . >/dev/null", own: atMost(1.3)},
	{name: "cat-cold", figure: "cat of all files, cold", before: dropCaches, line: catAll, own: atMost(2)},
	{name: "cat-warm", figure: "cat of all files, warm", before: settle, line: catAll, own: atMost(1.2)},
	{name: "write", figure: "64 MB written", before: "rm -f ../rw/big; sync", line: "dd if=/dev/zero of=../rw/big bs=1M count=64 2>/dev/null", bytes: bigFile, speed: atLeast(150)},
	{name: "read-cold", figure: "64 MB read, cold", before: dropCaches, line: copyBig, bytes: bigFile, speed: atLeast(250)},
	{name: "read-warm", figure: "64 MB read, warm", before: settle, line: copyBig, bytes: bigFile, speed: atLeast(500)},
	{name: "create", figure: "2,000 files made", before: "rm -rf ../rw/d; mkdir ../rw/d; sync", line: fmt.Sprintf(makeN, 2000), time: atMost(1)},
	{name: "remove", figure: "10,000 files removed", before: "rm -rf ../rw/d; mkdir ../rw/d; " + fmt.Sprintf(makeN, 10_000) + "; " + settle, line: "rm -r ../rw/d", time: atMost(3), rounds: 2},
	{name: "list", figure: "40,000 entries listed", before: dropCaches, line: "ls ../many >/dev/null", time: atMost(1.5), elsewhere: true},
	{name: "add", figure: "`git add -A` of the tree", before: "rm -rf .git; git init -q .; " + dropCaches, line: "git add -A", own: atMost(1.5), rounds: 1},
}

// measureMounts runs programs of Debian in a mounted directory, in a copy of it on the VM's own disk, and in the same directory mounted by 9P
// in a guest of QEMU, in turn. The guest's own clock measures.
func measureMounts(ctx context.Context, b *bench) error {
	if b.debian == "" {
		return &missingTool{"-debian DIR", "integration/bench/debian.sh makes DIR"}
	}
	if err := needTool("git", "git"); err != nil {
		return err
	}
	if err := makeTrees(b.kit); err != nil {
		return err
	}
	disk := b.kit.path("own.disk")
	if err := vm.CreateDisk(disk, 0); err != nil {
		return err
	}
	config := b.kit.config()
	config.Disk = disk
	var devices []string
	for _, name := range []string{"debian", "tree", "rw", "many"} {
		host := b.kit.path(name)
		if name == "debian" {
			host = b.debian
		}
		mount, err := vm.ParseMount(host + ":/m/" + name + ":unprotected=.")
		if err != nil {
			return err
		}
		config.Mounts = append(config.Mounts, mount)
		devices = append(devices, "-fsdev", "local,id="+name+",security_model=none,path="+host, "-device", "virtio-9p-device,fsdev="+name+",mount_tag="+name)
	}
	ours, err := startOwn(ctx, config)
	if err != nil {
		return err
	}
	defer ours.close()
	theirs, err := b.kit.startQEMU(ctx, nil, devices...)
	if err != nil {
		return err
	}
	defer theirs.close()
	const mount9P = "for name in debian tree rw many; do mkdir -p /m/$name; mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576 $name /m/$name; done; "
	const prepare = "set -e; mkdir -p /opt/deb; cp -a /m/debian/. /opt/deb; cd /opt/deb; mkdir -p m own dev proc tmp root etc; mount --bind /dev dev; mount -t proc proc proc; " +
		"for name in tree rw many; do mkdir -p m/$name; mount --bind /m/$name m/$name; done; " +
		"printf '[safe]\\n\\tdirectory = *\\n[gc]\\n\\tauto = 0\\n' >root/.gitconfig; "
	if _, err := ours.sh(ctx, prepare+"cp -a /m/tree own/tree; mkdir own/rw; sync"); err != nil {
		return err
	}
	if _, err := theirs.sh(ctx, mount9P+prepare); err != nil {
		return err
	}
	sides := []fileSide{{"mount", ours, "/m"}, {"own", ours, "/own"}, {"9p", theirs, "/m"}}
	for _, w := range fileWorks {
		if !b.measures(w.name) {
			continue
		}
		if err := w.measure(ctx, b, sides); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	return nil
}

// fileSide is where a command runs.
type fileSide struct {
	name  string
	guest guest
	base  string // has tree, rw and many
}

// run does a line after what is not measured. It returns what the line took: by the guest's clock, and of the processor, less what it takes to run nothing.
func (s fileSide) run(ctx context.Context, w fileWork) (cost, error) {
	if _, err := s.sh(ctx, w.before); err != nil {
		return cost{}, err
	}
	nothing, err := s.timed(ctx, ":")
	if err != nil {
		return cost{}, err
	}
	took, err := s.timed(ctx, w.line)
	return cost{took.wall, max(0, took.cpu-nothing.cpu)}, err
}

func (s fileSide) timed(ctx context.Context, line string) (cost, error) {
	var out string
	took, err := timed(s.guest.pid(), func() (err error) {
		out, err = s.sh(ctx, "a=$(date +%s%N); { "+line+"; } >/dev/null; b=$(date +%s%N); echo $((b-a)) >&3")
		return err
	})
	if err != nil {
		return cost{}, err
	}
	nanoseconds, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
	return cost{time.Duration(nanoseconds), took.cpu}, err
}

// sh runs a line in the tree, and returns what it writes to descriptor 3.
func (s fileSide) sh(ctx context.Context, line string) (string, error) {
	if line == "" {
		line = ":"
	}
	line = fmt.Sprintf("export HOME=/root; cd %s/tree; { %s; } 3>&1 >/dev/null 2>&1", s.base, line)
	return s.guest.sh(ctx, "exec chroot /opt/deb /bin/sh -e -c '"+line+"'")
}

func (w fileWork) measure(ctx context.Context, b *bench, sides []fileSide) error {
	took := make([]costs, len(sides))
	rounds := w.rounds
	if rounds == 0 {
		rounds = 3
	}
	if b.quick {
		rounds = 1
	}
	for range rounds {
		for i, s := range sides {
			if w.elsewhere && s.name == "own" {
				continue
			}
			c, err := s.run(ctx, w)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			took[i].add(c)
			b.report.cost("Mount/"+w.name+"/"+s.name, c)
		}
	}
	mount, own, qemu := took[0].wall, took[1].wall, took[2].wall
	add := func(figure string, f figure) {
		f.page, f.name = mountsPage, w.figure+figure
		b.report.add(f)
	}
	value := func(s samples, unit string, limit bar) figure {
		return figure{unit: unit, value: s.median(), spread: s, bar: limit}
	}
	if w.bytes > 0 {
		speed := func(s samples) (speeds samples) {
			for _, seconds := range s {
				speeds = append(speeds, w.bytes/1e6/seconds)
			}
			return speeds
		}
		add("", value(speed(mount), "MB/s", w.speed))
	} else {
		add("", value(mount, "s", w.time))
	}
	if !w.elsewhere {
		add(", against the own disk", value(mount.over(own), "times its time", w.own))
		add(", against the own disk, processor", value(took[0].cpu.over(took[1].cpu), "times its time", w.own))
	}
	add(", against QEMU's virtio-9p", value(mount.over(qemu), "times its time", atMost(1)))
	return nil
}

// makeTrees makes the directories that are mounted: a repository, an empty directory, and one with many files.
func makeTrees(k *kit) error {
	line := []byte("static int function_of_some_name(struct thing *thing, int count) { return thing->field + count; }\n")
	for d := range treeDirs {
		dir := filepath.Join(k.path("tree"), fmt.Sprintf("d%d", d))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		for f := range treeFiles {
			// Sizes as in a repository: most files are small. Each is another one, for git.
			size := treeFileMax * (1 + (d*treeFiles+f)*7919%97) / 97
			content := append(fmt.Appendf(nil, "// file %d of %d\n", f, d), bytes.Repeat(line, size/len(line)+1)...)
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%d.c", f)), content, 0o644); err != nil {
				return err
			}
		}
	}
	for _, arguments := range [][]string{{"init", "-q", "."}, {"add", "-A"}, {"-c", "user.name=bench", "-c", "user.email=bench@localhost", "commit", "-qm", "tree"}} {
		command := exec.Command("git", arguments...)
		command.Dir = k.path("tree")
		if _, err := output(command); err != nil {
			return err
		}
	}
	for _, name := range []string{"rw", "many"} {
		if err := os.Mkdir(k.path(name), 0o755); err != nil {
			return err
		}
	}
	for i := range manyFiles {
		if err := os.WriteFile(filepath.Join(k.path("many"), fmt.Sprintf("entry-%d", i)), nil, 0o644); err != nil {
			return err
		}
	}
	return nil
}

//go:build linux

package guest

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentvm/rpc"
)

const (
	generationName = "generation"
	// hooksDir holds programs that are run when the machine goes on from a snapshot.
	hooksDir = "/etc/agentvm/generation.d"
	// hookTime is how long each may run.
	hookTime = 10 * time.Second
	maxHooks = 64
)

// announce tells programs of the machine that it goes on from a snapshot: by the file /run/agentvm/generation, which a new one
// replaces so that inotify(7) sees it, and by running what is in /etc/agentvm/generation.d. Nobody waits for these.
func (s *Supervisor) announce(r *rpc.Restored) {
	if !s.whole {
		return
	}
	number, id := strconv.FormatUint(r.Generation, 10), hex.EncodeToString(r.GenerationID[:])
	if err := writeGeneration(runtimeDir, number+"\n"+id+"\n"); err != nil {
		s.tasks.Go(func() { s.note(slog.LevelWarn, fmt.Sprintf("generation of the VM: %v", err)) })
	}
	hooks := findHooks(hooksDir)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopHooks()
	s.stopHooks = func() {}
	if len(hooks) > 0 {
		ctx, stop := context.WithCancel(context.Background())
		s.stopHooks = stop
		s.tasks.Go(func() { s.runHooks(ctx, hooks, number, id) })
	}
}

// expectAnnouncement does what announce would do each time in each machine that goes on from this one: the directory is made, and the
// kernel remembers where no programs are.
func (s *Supervisor) expectAnnouncement() {
	if s.whole {
		_ = syscall.Mkdir(runtimeDir, 0o755)
		findHooks(hooksDir)
	}
}

// writeGeneration replaces the file in dir, which belongs to the guest: what is in the way is not followed.
func writeGeneration(dir, content string) error {
	const open = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Open(dir, open, 0)
	if err == unix.ENOENT {
		if err := syscall.Mkdir(dir, 0o755); err != nil {
			return &os.PathError{Op: "mkdir", Path: dir, Err: err}
		}
		fd, err = unix.Open(dir, open, 0)
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	return replaceFile(fd, generationName, []byte(content))
}

// findHooks lists the programs in dir, by name.
func findHooks(dir string) (paths []string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		path := dir + "/" + e.Name()
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 && len(paths) < maxHooks {
			paths = append(paths, path)
		}
	}
	return paths
}

// runHooks runs one program after the other, as root, with the number and the id of the generation.
func (s *Supervisor) runHooks(ctx context.Context, paths []string, number, id string) {
	for _, path := range paths {
		p, d, err := s.Exec(ctx, rpc.Request{Args: []string{path, number, id}, Dir: "/", Hold: hookTime})
		switch {
		case ctx.Err() != nil:
			return // the machine has been restored once more, and they run again
		case err != nil:
			s.note(slog.LevelWarn, fmt.Sprintf("%s: %v", path, err))
		case p != nil:
			p.Release()
			s.note(slog.LevelWarn, fmt.Sprintf("%s: killed after %v", path, hookTime))
		case d.Exit.Code != 0:
			s.note(slog.LevelWarn, fmt.Sprintf("%s: exit status %d: %.200s", path, d.Exit.Code, d.Stderr))
		}
	}
}

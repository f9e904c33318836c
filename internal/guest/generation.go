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

	"agentvm/internal/guest/guestrpc"
)

const (
	generationName = "generation"
	// hooksDir holds programs that run when the machine continues from a snapshot.
	hooksDir = "/etc/agentvm/generation.d"
	// hookTime bounds how long each may run.
	hookTime = 10 * time.Second
	maxHooks = 64
)

// announceGeneration tells programs in the guest that the machine continues from a snapshot. It replaces the file /run/agentvm/generation, which
// inotify(7) sees, and starts the programs of /etc/agentvm/generation.d in the background, without waiting for them.
func (s *Supervisor) announceGeneration(r *guestrpc.Restored) {
	if !s.isInit {
		return
	}
	number, id := strconv.FormatUint(r.Generation, 10), hex.EncodeToString(r.GenerationID[:])
	if err := writeGeneration(runtimeDir, number+"\n"+id+"\n"); err != nil {
		s.tasks.Go(func() { s.logToHost(slog.LevelWarn, fmt.Sprintf("generation of the VM: %v", err)) })
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

// prepareAnnouncement does now what announceGeneration would repeat in each machine that continues from this one: it makes the directory and
// lists the hooks, so that the kernel has cached that there are none.
func (s *Supervisor) prepareAnnouncement() {
	if s.isInit {
		_ = syscall.Mkdir(runtimeDir, 0o755)
		findHooks(hooksDir)
	}
}

// writeGeneration replaces the file in dir. The guest can change dir, so links are not followed.
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
		p, d, err := s.Exec(ctx, guestrpc.Request{Args: []string{path, number, id}, Dir: "/", Hold: hookTime})
		switch {
		case ctx.Err() != nil:
			return // the machine has been restored once more, and they run again
		case err != nil:
			s.logToHost(slog.LevelWarn, fmt.Sprintf("%s: %v", path, err))
		case p != nil:
			p.Release()
			s.logToHost(slog.LevelWarn, fmt.Sprintf("%s: killed after %v", path, hookTime))
		case d.Exit.Code != 0:
			s.logToHost(slog.LevelWarn, fmt.Sprintf("%s: exit status %d: %.200s", path, d.Exit.Code, d.Stderr))
		}
	}
}

package hostpath

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// searchFlag opens a directory that may be searched and not read.
const searchFlag = unix.O_PATH

// hold opens a name in an open directory with O_PATH, which holds the file without access to it.
func hold(dir int, name, path string) (*os.File, error) {
	fd, err := retry(func() (int, error) { return unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// addressOf returns a path in /proc that leads to the held socket, whatever has happened to its name.
func addressOf(e entry, path string) string {
	if e.held == nil {
		return path
	}
	return fmt.Sprintf("/proc/self/fd/%d", e.held.Fd())
}

// birth returns when an open directory was made, in nanoseconds.
func birth(dir *os.File) int64 {
	var st unix.Statx_t
	if unix.Statx(int(dir.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BTIME, &st) != nil || st.Mask&unix.STATX_BTIME == 0 {
		return 0
	}
	return st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
}

// isMagic reports whether only the system may be able to follow the links of a directory, as in /proc.
func isMagic(dir int) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(dir, &st) == nil && st.Type == unix.PROC_SUPER_MAGIC
}

// boot identifies the host's boot.
var boot = sync.OnceValue(func() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
})

// location is the place of a directory in its file system, which is the same through every bind mount. The zero value is unknown.
type location struct {
	mount uint64 // the mount's number, until it is looked up
	real  string
}

// locate returns where an open directory is. It is cheap; canonical is not.
func locate(dir *os.File, real string) location {
	if dir == nil {
		return location{}
	}
	var st unix.Statx_t
	if unix.Statx(int(dir.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st) != nil || st.Mask&unix.STATX_MNT_ID == 0 {
		return location{}
	}
	return location{st.Mnt_id, real}
}

// canonical returns the file system and the path in it, as "8:1/path"; empty when that is unknown.
func (l location) canonical(table mountTable) string {
	m, known := table[l.mount]
	if l.real == "" || !known {
		return ""
	}
	below, found := cutDir(l.real, m.point)
	if !found {
		return ""
	}
	return m.device + path.Join("/", m.root, below)
}

// mountTable has the mounts of this process by their numbers.
type mountTable map[uint64]mountPoint

type mountPoint struct{ device, root, point string }

// readMounts reads the table. It is empty where the system has none.
func readMounts() mountTable {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	defer file.Close()
	table := make(mountTable)
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		// 36 35 98:0 /root /point options ...
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		number, err := strconv.ParseUint(fields[0], 10, 64)
		if err == nil {
			table[number] = mountPoint{fields[2], unescape(fields[3]), unescape(fields[4])}
		}
	}
	return table
}

// unescape reads the octal escapes of the mount table.
func unescape(text string) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+3 < len(text) {
			if n, err := strconv.ParseUint(text[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

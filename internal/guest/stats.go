//go:build linux

package guest

import (
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/guest/sockets"
)

// tick is the unit of /proc/stat, USER_HZ, which is 100 on riscv64 and amd64.
const tick = 10 * time.Millisecond

// Sockets lists the guest's TCP and UDP sockets; see guestrpc.Handler.
func (s *Supervisor) Sockets(q *guestrpc.SocketQuery) ([]guestrpc.Socket, error) {
	if q != nil {
		return sockets.Find(*q)
	}
	return sockets.List()
}

// Stats reads the counters of the whole guest; see guestrpc.Handler.
func (s *Supervisor) Stats() (guestrpc.Stats, error) {
	if err := s.refuseWhenDown(); err != nil {
		return guestrpc.Stats{}, err
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return guestrpc.Stats{}, os.NewSyscallError("sysinfo", err)
	}
	unit := uint64(max(info.Unit, 1))
	const loadUnit = 1 << 16
	stats := guestrpc.Stats{
		Uptime: time.Duration(info.Uptime) * time.Second,
		Load1:  float64(info.Loads[0]) / loadUnit, Load5: float64(info.Loads[1]) / loadUnit, Load15: float64(info.Loads[2]) / loadUnit,
		MemoryTotal: uint64(info.Totalram) * unit, MemoryFree: uint64(info.Freeram) * unit,
		Processes: int(info.Procs),
	}
	for path, read := range map[string]func(*guestrpc.Stats, string){
		"/proc/stat": readCPU, "/proc/meminfo": readMemory, "/proc/net/dev": readNetwork,
	} {
		b, err := os.ReadFile(path)
		if err != nil {
			return guestrpc.Stats{}, err
		}
		read(&stats, string(b))
	}
	return stats, nil
}

// readCPU reads the line "cpu user nice system idle iowait irq softirq ...", in ticks.
func readCPU(s *guestrpc.Stats, text string) {
	line, _, _ := strings.Cut(text, "\n")
	n := numbers(strings.TrimPrefix(line, "cpu"))
	if len(n) < 7 {
		return
	}
	s.User = time.Duration(n[0]+n[1]) * tick
	s.System = time.Duration(n[2]+n[5]+n[6]) * tick
	s.Idle = time.Duration(n[3]+n[4]) * tick
}

func readMemory(s *guestrpc.Stats, text string) {
	for line := range strings.SplitSeq(text, "\n") {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			if n := numbers(strings.TrimSuffix(rest, "kB")); len(n) == 1 {
				s.MemoryAvailable = n[0] << 10
			}
		}
	}
}

// readNetwork adds up /proc/net/dev: name, then 8 numbers received, then 8 sent, each led by bytes and packets.
func readNetwork(s *guestrpc.Stats, text string) {
	for line := range strings.SplitSeq(text, "\n") {
		name, rest, ok := strings.Cut(line, ":")
		n := numbers(rest)
		if !ok || len(n) < 10 || strings.TrimSpace(name) == "lo" {
			continue
		}
		s.ReceivedBytes += n[0]
		s.ReceivedPackets += n[1]
		s.SentBytes += n[8]
		s.SentPackets += n[9]
	}
}

// numbers reads a line of decimal numbers. It returns nil for any other line.
func numbers(line string) (list []uint64) {
	for word := range strings.FieldsSeq(line) {
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return nil
		}
		list = append(list, n)
	}
	return list
}

package images

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// signalNames are Linux's signals on riscv64, from 1 on.
var signalNames = strings.Fields(`HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP TTIN TTOU URG XCPU XFSZ
	VTALRM PROF WINCH IO PWR SYS`)

// Real-time signals, as programs that are linked with glibc or musl count them.
const (
	signalMin = 34
	signalMax = 64
)

// StopSignalNumber returns the number of the signal that ends the image's command, as Linux counts, or 0 when the image names none. It may be
// written as Docker has it: SIGINT, INT, 2, SIGRTMIN+3.
func (i *Image) StopSignalNumber() (int, error) {
	if i.StopSignal == "" {
		return 0, nil
	}
	name := strings.TrimPrefix(strings.ToUpper(i.StopSignal), "SIG")
	if n, err := strconv.Atoi(name); err == nil && n > 0 && n <= signalMax {
		return n, nil
	}
	if n := slices.Index(signalNames, name); n >= 0 {
		return n + 1, nil
	}
	if rest, ok := strings.CutPrefix(name, "RTMIN"); ok {
		if n, err := strconv.Atoi("0" + strings.TrimPrefix(rest, "+")); err == nil && n <= signalMax-signalMin {
			return signalMin + n, nil
		}
	}
	if rest, ok := strings.CutPrefix(name, "RTMAX"); ok {
		if n, err := strconv.Atoi("0" + strings.TrimPrefix(rest, "-")); err == nil && n <= signalMax-signalMin {
			return signalMax - n, nil
		}
	}
	return 0, fmt.Errorf("image %s has the STOPSIGNAL %.40q, which is no signal of Linux", i.Name, i.StopSignal)
}

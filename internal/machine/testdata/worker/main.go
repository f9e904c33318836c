// Command worker is PID 1 of the guests that tests of images save and restore. It says "ready", and then works without end
// on what makes memory change: computation, garbage collection, files, processes, timers. Each line of input asks for
// something else; the answer is a line, too.
package main

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 {
		return // the process that a turn of work starts
	}
	started := time.Now()
	if err := errors.Join(syscall.Mount("dev", "/dev", "devtmpfs", 0, ""), os.Mkdir("/files", 0o755)); err != nil {
		fmt.Println("prepare:", err)
	}
	fmt.Println("ready")
	if os.Getenv("work") != "" {
		for turn := 0; ; turn++ {
			work(turn)
		}
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		answer(lines.Text(), started)
	}
}

// answer obeys "time", "run", "write TEXT" and "read".
func answer(line string, started time.Time) {
	command, rest, _ := strings.Cut(line, " ")
	switch command {
	case "time":
		fmt.Println("=", time.Since(started).Microseconds())
	case "run":
		work(1)
		fmt.Println("= ran")
	case "write":
		fmt.Println("=", os.WriteFile("/files/note", []byte(rest), 0o644))
	case "read":
		note, err := os.ReadFile("/files/note")
		fmt.Println("=", string(note), err)
	}
}

func work(turn int) {
	tree := map[string][]byte{}
	for i := range 300 {
		sum := sha256.Sum256(fmt.Append(nil, turn, i))
		tree[fmt.Sprintf("%x", sum[:4])] = make([]byte, 64+i%512)
	}
	name := fmt.Sprintf("/files/%d", turn%16)
	if err := os.WriteFile(name, make([]byte, 4096*(turn%32+1)), 0o644); err != nil {
		fmt.Println("write:", err)
	}
	if err := exec.Command("/init", "child").Run(); err != nil {
		fmt.Println("exec:", err)
	}
	time.Sleep(time.Duration(len(tree)%7) * time.Millisecond)
}

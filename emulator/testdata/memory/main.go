// Command memory is PID 1 of the guests that tests of the generation device and of the balloon run. It says "ready"; each
// line of input asks for something, the answer is a line that begins with "= ".
package main

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	if len(os.Args) > 2 && os.Args[1] == "fill" {
		fill(os.Args[2])
		return
	}
	err := errors.Join(syscall.Mount("dev", "/dev", "devtmpfs", 0, ""), os.Mkdir("/proc", 0o755),
		syscall.Mount("proc", "/proc", "proc", 0, ""))
	if err != nil {
		fmt.Println("prepare:", err)
	}
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		fmt.Println("=", answer(lines.Text()))
	}
}

// answer obeys "random" (bytes of /dev/urandom), "fill MIB" (in a process that ends then), "reseeds" (what the kernel
// logged about them) and "fork" (a process that does nothing).
func answer(line string) string {
	command, rest, _ := strings.Cut(line, " ")
	switch command {
	case "random":
		return random()
	case "reseeds":
		return reseeds()
	case "fork":
		rest = "0"
	}
	if err := exec.Command("/init", "fill", rest).Run(); err != nil {
		return err.Error()
	}
	return "done"
}

func random() string {
	bytes := make([]byte, 32)
	source, err := os.Open("/dev/urandom")
	if err == nil {
		_, err = source.Read(bytes)
	}
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%x", sha256.Sum256(bytes))
}

// reseeds counts the lines of the kernel's log that a changed generation leaves.
func reseeds() string {
	log := make([]byte, 1<<16)
	const readAll = 3
	n, err := syscall.Klogctl(readAll, log)
	if err != nil {
		return err.Error()
	}
	return strconv.Itoa(strings.Count(string(log[:n]), "crng reseeded due to virtual machine fork"))
}

func fill(mebibytes string) {
	n, err := strconv.Atoi(mebibytes)
	if err != nil {
		panic(err)
	}
	memory := make([]byte, n<<20)
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = 1
	}
}

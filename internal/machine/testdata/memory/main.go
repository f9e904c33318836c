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

// answer obeys "random" (bytes of /dev/urandom), "stream" (the last of many that were read at once), "reseed" (the kernel's
// generator, now), "fill MIB" (in a process that ends then), "reseeds" (what the kernel logged about them) and "fork" (a
// process that does nothing).
func answer(line string) string {
	command, rest, _ := strings.Cut(line, " ")
	switch command {
	case "random":
		return random(32)
	case "stream":
		return random(256 << 10)
	case "reseed":
		return reseed()
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

// random reads so many bytes in one call, and tells the last 32.
func random(size int) string {
	bytes := make([]byte, size)
	source, err := os.Open("/dev/urandom")
	if err == nil {
		_, err = source.Read(bytes)
	}
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%x", sha256.Sum256(bytes[size-32:]))
}

// reseed has the kernel do what its timer has it do every minute.
func reseed() string {
	const reseedCRNG = 0x5207 // RNDRESEEDCRNG of linux/random.h
	source, err := os.OpenFile("/dev/urandom", os.O_WRONLY, 0)
	if err != nil {
		return err.Error()
	}
	defer source.Close()
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, source.Fd(), reseedCRNG, 0); errno != 0 {
		return errno.Error()
	}
	return "done"
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

// Package burst sends bursts of connections into a guest, to a program of its own there that adds up what each of them
// carries. It is for the tests beside it.
package burst

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"agentvm/images/storetest"
)

//go:embed testdata/sums.c
var source string

const (
	// Port is where the program listens in the guest.
	Port = 8080
	// size is what each connection carries.
	size = 20_000
)

// Server compiles the program for VMs of the image that tests boot. It skips the test when the compiler is missing.
func Server(t *testing.T) []byte {
	t.Helper()
	of := storetest.Architecture(t)
	compiler := of.Machine() + "-linux-gnu-gcc"
	gcc, err := exec.LookPath(compiler)
	switch {
	case err != nil && os.Getenv("CI") == "true":
		t.Fatal(compiler + " is missing, and CI must not skip this test")
	case err != nil:
		t.Skipf("needs %s and libc6-dev-%s-cross", compiler, of)
	}
	input, output := filepath.Join(t.TempDir(), "sums.c"), filepath.Join(t.TempDir(), "sums")
	if err := os.WriteFile(input, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(gcc, "-O1", "-static", "-s", fmt.Sprint("-DSIZE=", size), fmt.Sprint("-DPORT=", Port),
		"-o", output, input).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	program, err := os.ReadFile(output)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// Send opens connections to an address of the host that leads to the program, all at once, and returns what went wrong with each.
// stuck is called once if a connection has no answer after two minutes, while it is still open. It may be nil.
func Send(at string, connections int, stuck func()) error {
	var burst sync.WaitGroup
	var once sync.Once
	begin := make(chan struct{})
	errs := make([]error, connections)
	for i := range connections {
		burst.Go(func() {
			<-begin
			errs[i] = exchange(at, byte(i), func() {
				if stuck != nil {
					once.Do(stuck)
				}
			})
		})
	}
	close(begin)
	burst.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%d connections at once: %.1000v", connections, err)
	}
	return nil
}

// exchange sends bytes that depend on seed, and expects their sum.
func exchange(at string, seed byte, stuck func()) error {
	conn, err := net.DialTimeout("tcp", at, time.Minute)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		return err
	}
	sent, sum := make([]byte, size), uint32(0)
	for i := range sent {
		sent[i] = seed + byte(i)
		sum = sum*31 + uint32(sent[i])
	}
	if _, err := conn.Write(sent); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	switch want := fmt.Sprintln(sum); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		stuck()
		return fmt.Errorf("connection of %v: %w", conn.LocalAddr(), err)
	case err == nil && string(answer) != want:
		return fmt.Errorf("the answer is %q, want %q", answer, want)
	}
	return err
}

package wasi_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"agentvm/wasi"
)

// A host writes to a stream, and the waiter of the machine learns which descriptor changed.
func ExampleSystem_Wait() {
	s := wasi.NewSystem(wasi.Config{})
	defer s.Close()
	control := wasi.NewStream(4096)
	s.SetFile(5, control)

	go control.Host().Write([]byte("hello")) // small enough not to block
	if err := s.Wait(context.Background(), time.Minute); err != nil {
		fmt.Println(err)
	}
	fmt.Printf("%b\n", s.TakeReady())
	// Output: 100000
}

// A module whose _start calls proc_exit(3).
func ExampleRunCommand() {
	module := []byte("\x00asm\x01\x00\x00\x00" +
		"\x01\x08\x02\x60\x01\x7f\x00\x60\x00\x00" + // types (i32) -> (), () -> ()
		"\x02\x24\x01\x16wasi_snapshot_preview1\x09proc_exit\x00\x00" +
		"\x03\x02\x01\x01\x05\x03\x01\x00\x01" + // _start, one page of memory
		"\x07\x13\x02\x06memory\x02\x00\x06_start\x00\x01" +
		"\x0a\x08\x01\x06\x00\x41\x03\x10\x00\x0b") // proc_exit(3)
	code, err := wasi.RunCommand(context.Background(), wasi.CommandConfig{
		Module: module, Args: []string{"example"}, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	})
	fmt.Println(code, err)
	// Output: 3 <nil>
}

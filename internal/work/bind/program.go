package bind

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"
)

// killTime is how long the streams of a host's program may stay open after its end, because programs that it has left hold them.
const killTime = time.Second

// Parse reads NAME=COMMAND, as the flag --bind has it: COMMAND is a program of the host and its first arguments, separated by spaces. No
// shell reads them, and the guest's arguments follow as they are.
func Parse(text string) (Command, error) {
	name, line, _ := strings.Cut(text, "=")
	words := strings.Fields(line)
	if !validName(name) || len(words) == 0 {
		return Command{}, fmt.Errorf("host command %.200q: want NAME=COMMAND, as in jira=/usr/local/bin/jira or gh=gh issue", text)
	}
	program, err := exec.LookPath(words[0])
	if err != nil {
		return Command{}, fmt.Errorf("host command %s: %w", name, err)
	}
	return Command{Name: name, Run: func(ctx context.Context, c Call) error { return runProgram(ctx, c, program, words[1:]) }}, nil
}

// runProgram executes a program of the host in the working directory and with the environment of this process. What the program has started ends
// with it, unless it has left the program's process group; on Linux the program ends with this process.
func runProgram(ctx context.Context, c Call, program string, args []string) error {
	runtime.LockOSThread() // to the kernel, the program's parent is the thread
	defer runtime.UnlockOSThread()
	command := exec.CommandContext(ctx, program, append(args[:len(args):len(args)], c.Args...)...)
	command.Stdout, command.Stderr, command.WaitDelay = c.Stdout, c.Stderr, killTime
	endsGroup(command)
	in, err := command.StdinPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return fmt.Errorf("start the host's program: %w", err)
	}
	var feeding sync.WaitGroup
	feeding.Go(func() {
		_, _ = io.Copy(in, c.Stdin) // it may not read all, or end before
		_ = in.Close()
	})
	err = command.Wait()
	endGroup(command)
	_ = c.Stdin.Close()
	feeding.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if code := exit.ExitCode(); code > 0 && code < 256 {
			return &ExitError{uint8(code)}
		}
	}
	return err
}

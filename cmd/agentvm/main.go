//go:build !manual

// agentvm runs commands in a Linux virtual machine that needs no KVM, no root and no daemon. docs/guide/reference.md describes it.
package main

import (
	"os"
	"runtime/debug"
	"time"
)

func main() {
	collectLater()
	c := &cli{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	os.Exit(c.main(os.Args[1:]))
}

// collectLater has a process that starts use more memory than Go would by itself, up to 16 MB, before it looks for garbage: most
// commands end sooner, and a collection costs a tenth of `agentvm exec true`. It changes nothing where GOGC is set.
func collectLater() {
	if os.Getenv("GOGC") != "" {
		return
	}
	usual := debug.SetGCPercent(400)
	time.AfterFunc(time.Second, func() { debug.SetGCPercent(usual) })
}

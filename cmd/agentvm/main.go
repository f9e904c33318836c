//go:build !manual

// agentvm runs commands in a Linux virtual machine that needs no KVM, no root and no daemon. docs/guide/reference.md describes it.
package main

import (
	"io"
	"log"
	"os"
	"runtime/debug"
	"time"

	netlog "gvisor.dev/gvisor/pkg/log"
)

func main() {
	collectLater()
	discardForeignLogs()
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

// discardForeignLogs has the loggers that libraries share write nowhere. What they tell came from a guest or from a server: net/http
// quotes what a server sends unasked, with the secret that it was sent, and gVisor's network names the guest's connections. They wrote
// it to standard error, which is a daemon's log.
func discardForeignLogs() {
	log.SetOutput(io.Discard)
	netlog.SetTarget(netlog.GoogleEmitter{Writer: &netlog.Writer{Next: io.Discard}})
}

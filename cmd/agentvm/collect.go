package main

import (
	"os"
	"runtime/debug"
	"time"
)

// collectLater has a process that starts use more memory than Go would by itself, up to 16 MB, before it looks for garbage: most
// commands end sooner, and a collection costs a tenth of `agentvm exec true`. It changes nothing where GOGC is set.
func collectLater() {
	if os.Getenv("GOGC") != "" {
		return
	}
	usual := debug.SetGCPercent(400)
	time.AfterFunc(time.Second, func() { debug.SetGCPercent(usual) })
}

package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/pflag"

	"agentvm/internal/httpserver"
)

// auditFlag is --audit of commands that serve.
type auditFlag struct{ path string }

func (a *auditFlag) register(flags *pflag.FlagSet) {
	flags.StringVar(&a.path, "audit", "", "append each request to a `FILE`, one JSON object a line")
}

// open returns the function that appends a request to the file, nil without the flag, and what closes the file.
func (a *auditFlag) open(log *slog.Logger) (audit func(httpserver.Record), file io.Closer, err error) {
	if a.path == "" {
		return nil, io.NopCloser(nil), nil
	}
	f, err := openHostFile(a.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND)
	if err != nil {
		return nil, nil, fmt.Errorf("--audit: %w", err)
	}
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() { // paths and names of VMs are no one else's to read
		if err := f.Chmod(info.Mode().Perm() &^ 0o077); err != nil {
			_ = f.Close()
			return nil, nil, fmt.Errorf("--audit: %w", err)
		}
	}
	return httpserver.AuditTo(f, func(err error) { log.Warn("the audit log is not complete", "error", err) }), f, nil
}

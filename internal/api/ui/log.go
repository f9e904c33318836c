package ui

import (
	"fmt"
	"net/http"
	"time"

	"agentvm/internal/api/serve"
	"agentvm/internal/httpserver"
)

const (
	logBacklog   = 256 << 10 // bytes of the log with which a view begins
	logPause     = 200 * time.Millisecond
	logWriteTime = time.Minute // in which the page takes a piece
)

// log sends the lines of the log of a VM's daemon as a text while it grows, until the page has enough or the VM is removed. It is the owner's:
// there are paths of the host in it.
func (s *Server) log(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("vm")
	log, err := s.options.API.Store.Log(name, logBacklog)
	if err != nil {
		serve.WriteProblem(w, err)
		return
	}
	defer log.Close()
	ctx, cancel := s.untilEnd(r)
	defer cancel()
	w = httpserver.PatientWriter(w, logWriteTime)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	pause := time.NewTicker(logPause)
	defer pause.Stop()
	for there := error(nil); there == nil; there = s.options.API.Store.Exists(name) {
		err := log.Poll(func(line []byte) error {
			_, err := fmt.Fprintf(w, "%s\n", line)
			return err
		})
		if err == nil {
			err = http.NewResponseController(w).Flush()
		}
		if err != nil {
			return
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
	}
}

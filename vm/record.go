package vm

import (
	"io"

	"agentvm/internal/work/record"
)

// Recorder keeps what is done with VMs as text, one JSON object a line: see Config.Recorder. A nil Recorder keeps nothing.
type Recorder struct{ recording *record.Recorder }

// NewRecorder makes a recorder that writes to w, limit bytes at most (0: 64 MiB). What comes later is left out, and the last line says so.
// The guest waits while w blocks. The caller closes w, after the VMs. agentvm replay shows recordings.
func NewRecorder(w io.Writer, limit int64) *Recorder {
	return &Recorder{record.NewRecorder(w, limit)}
}

// Err returns the first error of writing. After it nothing is written.
func (r *Recorder) Err() error { return r.to().Err() }

// to returns what the VM records to. Nil is a recorder that keeps nothing.
func (r *Recorder) to() *record.Recorder {
	if r == nil {
		return nil
	}
	return r.recording
}

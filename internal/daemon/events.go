package daemon

import (
	"encoding/json"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"agentvm/internal/work/job"
)

// EventKind is what has happened.
type EventKind string

// Kinds of events.
const (
	EventStarting     EventKind = "starting"
	EventRunning      EventKind = "running"
	EventRestarting   EventKind = "restarting" // the guest has restarted itself, or its policy starts it again
	EventPaused       EventKind = "paused"
	EventResumed      EventKind = "resumed"
	EventStopping     EventKind = "stopping"
	EventStopped      EventKind = "stopped"
	EventHibernated   EventKind = "hibernated" // saved until it is needed
	EventFailed       EventKind = "failed"
	EventCrashed      EventKind = "crashed" // its daemon was killed
	EventRemoved      EventKind = "removed"
	EventPolicy       EventKind = "policy" // a new network policy
	EventPortOpened   EventKind = "port-opened"
	EventPortClosed   EventKind = "port-closed"
	EventMountAdded   EventKind = "mount-added"
	EventMountRemoved EventKind = "mount-removed"
	EventJobStarted   EventKind = "job-started"
	EventJobEnded     EventKind = "job-ended"
	EventDenied       EventKind = "denied" // a request of the guest to the network
)

// Event is something that has happened to a VM. The guest may have chosen Message, Program and Target.
type Event struct {
	Time    time.Time `json:"time"`
	VM      string    `json:"vm"`
	Kind    EventKind `json:"kind"`
	Message string    `json:"message,omitempty"` // the reason, the policy, the port, the mount, the rule
	Job     string    `json:"job,omitempty"`
	Label   string    `json:"label,omitempty"`   // of the job
	Program string    `json:"program,omitempty"` // of the job, without its arguments, which may be secret; of a denial, the process
	Exit    *int      `json:"exit,omitempty"`    // of a job that has ended, when it is known
	Target  string    `json:"target,omitempty"`  // of a denial
	Cut     int       `json:"cut,omitempty"`     // connections that a new policy has ended
}

// maxEvents bounds events.log, in bytes. At that size it replaces events.log.1.
const maxEvents = 1 << 20

func (p paths) events() string { return filepath.Join(p.dir, "events.log") }

// eventLog is a VM's events.log: an Event of JSON a line. It is opened when the first event comes.
type eventLog struct {
	path   string
	logger *slog.Logger

	mu     sync.Mutex
	log    *logFile
	closed bool
}

func newEventLog(p paths, logger *slog.Logger) *eventLog {
	return &eventLog{path: p.events(), logger: logger}
}

func (l *eventLog) write(e Event) {
	b, err := json.Marshal(e)
	if err != nil {
		return // no field of it fails
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.log == nil && !l.closed {
		l.log, err = openLog(l.path, maxEvents)
	}
	if l.log != nil {
		_, err = l.log.Write(append(b, '\n'))
	}
	if err != nil {
		l.logger.Warn("record an event", "error", err)
	}
}

func (l *eventLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed = true; l.log != nil {
		_ = l.log.Close()
		l.log = nil
	}
}

// event records an event of the VM, now.
func (d *daemon) event(e Event) {
	e.Time, e.VM = time.Now().UTC(), d.name
	d.events.write(e)
}

// jobEvent records that a job has started or ended.
func (d *daemon) jobEvent(i job.Info) {
	e := Event{Kind: EventJobStarted, Job: i.ID, Label: i.Label}
	if len(i.Args) > 0 {
		e.Program = i.Args[0]
	}
	if !i.Ended.IsZero() {
		if e.Kind, e.Message = EventJobEnded, i.Error; i.Exit != nil {
			e.Exit = &i.Exit.Code
		}
	}
	d.event(e)
}

// noteCrash records that a VM's daemon was found dead.
func noteCrash(p paths) {
	b, _ := json.Marshal(Event{Time: time.Now().UTC(), VM: filepath.Base(p.dir), Kind: EventCrashed, Message: "its daemon was killed, or ended without a word"})
	if f, err := openAppend(p.events()); err == nil {
		_, _ = f.Write(append(b, '\n')) // whoever follows sees the state otherwise
		_ = f.Close()
	}
}

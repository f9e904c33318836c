package serve

import (
	"net/http"
	"time"

	"agentvm/client"
)

const maxEventsOpen = 128

func (s *Server) eventRoutes() []route {
	return []route{route{
		method: "GET", path: "/v1/events", rawOut: "text/event-stream", status: http.StatusOK, stream: true, serve: s.events,
		summary: "Sends what happens to VMs while the client listens, each as an event named event",
		events:  map[string]any{"event": client.Event{}},
	}.with(parameter{name: "vm", usage: "of this VM only"}, parameter{name: "since", usage: "begin with what has happened since this time (RFC 3339); default: now"})}
}

// events sends the events of the store.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	o := client.EventsOptions{Follow: true}
	if name := r.URL.Query().Get("vm"); name != "" {
		if err := client.CheckName(name); err != nil {
			WriteProblem(w, invalid("vm: %v", err))
			return
		}
		o.Names = []string{name}
	}
	if text := r.URL.Query().Get("since"); text != "" {
		var err error
		if o.Since, err = time.Parse(time.RFC3339, text); err != nil {
			WriteProblem(w, invalid("since: want a time as 2026-11-25T20:00:00Z"))
			return
		}
	}
	if s.listening.Add(1) > maxEventsOpen {
		s.listening.Add(-1)
		WriteProblem(w, problemf(http.StatusServiceUnavailable, "%d clients listen", maxEventsOpen))
		return
	}
	defer s.listening.Add(-1)
	e := newEvents(w)
	defer e.close()
	_ = s.options.Store.Events(r.Context(), o, func(event client.Event) error { return e.send("event", event) })
}

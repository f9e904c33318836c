package router

import (
	"encoding/json"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"agentvm/egress"
)

// denialTime is the form of times in denial lines: always UTC, and of constant length.
const denialTime = "2006-01-02T15:04:05.000000Z"

// denialLine is a denial as the guest's programs read it, in /run/agentvm/denials and at http://agentvm.internal/denials:
//
//	time=2026-01-02T03:04:05.000000Z verdict=deny kind=tcp source=192.168.127.3:40000 destination=203.0.113.1:443
//	names=example.com process=wget[7] flow=12 rule=*:443 reason=denied-by-rule message="..."
//
// in one line. The keys are those of egress.Event in JSON, with the same meaning, in this order; unknown values are left out.
// Values with spaces, quotes or equals signs are JSON strings, and so is every message. New keys may come before message.
// docs/guide/network.md promises this to programs.
func denialLine(e egress.Event) string {
	l := lineWriter{}
	l.add("time", e.Time.UTC().Format(denialTime))
	l.add("verdict", e.Verdict)
	l.add("kind", e.Kind)
	l.add("source", addressText(e.Source))
	l.add("destination", addressText(e.Destination))
	l.add("names", strings.Join(e.Names, ","))
	l.add("query", e.Query)
	l.add("process", e.Process)
	if e.Flow != 0 {
		l.add("flow", strconv.FormatUint(e.Flow, 10))
	}
	l.add("rule", e.Rule)
	l.add("reason", e.Reason)
	l.quote("message", e.Message)
	return l.String()
}

// lostLine replaces the lines of denials that were dropped.
func lostLine(now time.Time, lost int) string {
	l := lineWriter{}
	l.add("time", now.UTC().Format(denialTime))
	l.add("verdict", egress.VerdictDeny)
	l.add("lost", strconv.Itoa(lost))
	l.quote("message", strconv.Itoa(lost)+" more were denied")
	return l.String()
}

// addressText is empty for an invalid address. An echo request has port 0.
func addressText(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// lineWriter makes a line of key=value. The guest chose names and processes: what is not printable becomes question marks, so
// that no line can look like two, nor a value like two keys.
type lineWriter struct{ strings.Builder }

func (l *lineWriter) add(key, value string) {
	switch {
	case value == "":
	case strings.ContainsAny(value, " \"\\="):
		l.quote(key, value)
	default:
		l.put(key, oneLine(value))
	}
}

func (l *lineWriter) quote(key, value string) {
	var quoted strings.Builder
	encoder := json.NewEncoder(&quoted)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(oneLine(value)) // text can always be encoded
	l.put(key, strings.TrimSuffix(quoted.String(), "\n"))
}

func (l *lineWriter) put(key, value string) {
	if l.Len() > 0 {
		l.WriteByte(' ')
	}
	l.WriteString(key + "=" + value)
}

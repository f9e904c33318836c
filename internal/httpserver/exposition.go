package httpserver

import (
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// MetricKind is the type of a metric.
type MetricKind string

// Counters only grow until the process ends.
const (
	Counter MetricKind = "counter"
	Gauge   MetricKind = "gauge"
)

// Exposition is what a server of metrics answers, Prometheus's text format, version 0.0.4. The zero value is empty.
type Exposition struct {
	metrics map[string]*strings.Builder // by name
}

// Add adds a value of a metric, whose help and kind are those of its first value. Labels are alternating names and values; a value that is not UTF-8
// is mended. The names are the program's own.
func (e *Exposition) Add(kind MetricKind, name, help string, value float64, labels ...string) {
	b := e.metrics[name]
	if b == nil {
		if e.metrics == nil {
			e.metrics = make(map[string]*strings.Builder)
		}
		b = &strings.Builder{}
		e.metrics[name] = b
		b.WriteString("# HELP " + name + " " + strings.NewReplacer(`\`, `\\`, "\n", `\n`).Replace(help) + "\n# TYPE " + name + " " + string(kind) + "\n")
	}
	b.WriteString(name)
	escape := strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
	for i := 0; i+1 < len(labels); i += 2 {
		separator := ","
		if i == 0 {
			separator = "{"
		}
		b.WriteString(separator + labels[i] + `="` + escape.Replace(strings.ToValidUTF8(labels[i+1], "?")) + `"`)
	}
	if len(labels) > 1 {
		b.WriteByte('}')
	}
	b.WriteString(" " + strconv.FormatFloat(value, 'g', -1, 64) + "\n")
}

// String returns the metrics in the order of their names, and of each the values in the order in which they were added.
func (e *Exposition) String() string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(e.metrics)) {
		text.WriteString(e.metrics[name].String())
	}
	return text.String()
}

// Write answers a request.
func (e *Exposition) Write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = io.WriteString(w, e.String())
}

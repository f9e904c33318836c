package e2b

import (
	"bytes"
	"context"
	"encoding/binary"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"agentvm/internal/httpserver/servertest"
)

// bombs are messages that are small to send and would be large, deep or endless to take.
var bombs = map[string]string{
	"deep arrays":    strings.Repeat("[", 1<<20),
	"deep objects":   strings.Repeat(`{"a":`, 1<<18),
	"a long number":  `{"timeout":` + strings.Repeat("9", 1<<20) + `}`,
	"a long string":  `{"templateID":"` + strings.Repeat("a", maxJSON) + `"}`,
	"escapes":        `{"templateID":"` + strings.Repeat(`\ud800`, 1<<18) + `"`,
	"another type":   `"text"`,
	"cut":            `{"templateID":"base"`,
	"no JSON at all": "\x00\xff\xfe",
}

// TestBombs sends them to the control API and to envd, in the form of each: an answer comes soon, and what was allocated is about their size.
func TestBombs(t *testing.T) {
	h := serve(t, false)
	id := h.create(`{"templateID":"base"}`)
	refused := func(what string, bytes int, send func() (int, string), codes ...string) {
		t.Helper()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		code, text := send()
		took := time.Since(began)
		runtime.ReadMemStats(&after)
		streamed := slices.ContainsFunc(codes, func(code string) bool { return strings.Contains(text, `"code":"`+code+`"`) })
		if (code < 400 || code >= 500) && !streamed {
			t.Errorf("%s: %d %.200s", what, code, text)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 || took > 10*time.Second {
			t.Errorf("%s, of %d bytes: %d bytes were allocated in %v", what, bytes, n, took)
		}
	}
	envd := []string{"E2b-Sandbox-Id", id, "X-Access-Token", h.s.token(id), "Content-Type"}
	for name, bomb := range bombs {
		refused(name+" as a sandbox", len(bomb), func() (int, string) { return h.api("POST", "/v2/sandboxes", bomb) })
		refused(name+" as a message", len(bomb), func() (int, string) {
			return h.do("POST", "/process.Process/SendInput", strings.NewReader(bomb), append(envd, "application/json")...)
		})
		envelope := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(bomb))), bomb...)
		refused(name+" in an envelope", len(bomb), func() (int, string) {
			return h.do("POST", "/process.Process/Start", bytes.NewReader(envelope), append(envd, "application/connect+json")...)
		}, "invalid_argument", "resource_exhausted")
	}
	for name, c := range map[string]struct{ envelope, code string }{
		"more than was sent": {"\x00\xff\xff\xff\xff{}", "resource_exhausted"}, "less than it says": {"\x00\x00\x00\x00\x03{}", "internal"}, "nothing": {"", "unimplemented"},
		"a part of a head": {"\x00\x00", "internal"}, "compressed": {"\x01\x00\x00\x00\x02{}", "internal"}, "two messages": {"\x00\x00\x00\x00\x02{}\x00\x00\x00\x00\x02{}", "unimplemented"},
	} {
		refused("an envelope with "+name, len(c.envelope), func() (int, string) {
			return h.do("POST", "/process.Process/Start", strings.NewReader(c.envelope), append(envd, "application/connect+json")...)
		}, c.code)
	}
	if n := h.vms.count(); n != 1 {
		t.Errorf("there are %d VMs", n)
	}
}

// TestConnectionsOpenedAndDropped: 10,000 connections that are dropped, many of them in the middle of something, leave nothing.
func TestConnectionsOpenedAndDropped(t *testing.T) {
	h := serve(t, false)
	id := h.create(`{"templateID":"base"}`)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	serving, stop := context.WithCancel(ctx)
	url, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- h.s.Serve(serving, "127.0.0.1:0", func(at string) { url <- at }) }()
	h.url = <-url
	before := runtime.NumGoroutine()
	head := " HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: " + id + "\r\nX-Access-Token: " + h.s.token(id) + "\r\nX-API-Key: " + testKey + "\r\n"
	servertest.OpenAndDrop(ctx, t, strings.TrimPrefix(h.url, "http://"), 10_000, []string{
		"", "GET /health" + head, "GET /v2/sandboxes" + head + "\r\n", "\x16\x03\x01\x02", "POST /v2/sandboxes" + head + "Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{",
		"POST /process.Process/List" + head + "Content-Type: application/json\r\nContent-Length: 4000000\r\n\r\n",
		"POST /process.Process/Start" + head + "Content-Type: application/connect+json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n\x00\x00\x00\x10\x00\r\n",
		"POST /files?path=/x" + head + "Content-Type: multipart/form-data; boundary=b\r\nTransfer-Encoding: chunked\r\n\r\n",
	})
	deadline := time.Now().Add(time.Minute)
	for runtime.NumGoroutine() > before+10 && time.Now().Before(deadline) {
		time.Sleep(50 * time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > before+10 {
		t.Errorf("%d goroutines, %d before", n, before)
	}
	if code, text := h.api("GET", "/v2/sandboxes", ""); code != 200 || !strings.Contains(text, id) {
		t.Errorf("%d %s", code, text)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

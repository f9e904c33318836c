package preview

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestRefused has every answer that a visitor may get instead of one from the guest, as a page and as text.
func TestRefused(t *testing.T) {
	var permit error
	w := newWorld(t, func(cfg *ServerConfig) {
		cfg.Permit = func(context.Context, Preview) error { return permit }
		cfg.Limits.BodyBytes = 100
	})
	garbage := listen(t)
	go func() {
		for {
			conn, err := garbage.Accept()
			if err != nil {
				return
			}
			io.WriteString(conn, "SSH-2.0-dropbear\r\n")
			conn.Close()
		}
	}()
	w.vms.put("dev", 22, garbage.Addr().String())
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(echo))
	w.vms.serve(t, "dev", 3001, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Large", strings.Repeat("x", 1<<20))
	}))
	works, unused := create(t, w.store, "dev", 3000, 0), create(t, w.store, "dev", 1, 0)
	ssh, large := create(t, w.store, "dev", 22, 0), create(t, w.store, "dev", 3001, 0)
	short, revoked := create(t, w.store, "dev", 3000, time.Minute), create(t, w.store, "dev", 3000, 0)
	if err := w.store.Revoke(t.Context(), revoked.ID); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(2 * time.Minute)
	for _, c := range []struct {
		name, token, body string
		permit            error
		status            int
		text              string
	}{
		{"works", works.Token, "", nil, 200, "GET"},
		{"wrong", strings.Repeat("0", 63), "", nil, 404, "No such preview"},
		{"cut", works.Token[:62], "", nil, 404, "No such preview"},
		{"changed", works.Token[:40] + "0000" + works.Token[44:], "", nil, 404, "No such preview"},
		{"expired", short.Token, "", nil, 410, "expired"},
		{"revoked", revoked.Token, "", nil, 410, "withdrawn"},
		{"no listener", unused.Token, "", nil, 502, "No program in the virtual machine “dev” listens on port 1"},
		{"no HTTP", ssh.Token, "", nil, 502, "does not speak HTTP"},
		{"large header", large.Token, "", nil, 502, "Not a proper answer"},
		{"large body", works.Token, strings.Repeat("x", 101), nil, 413, "100 bytes"},
		{"policy", works.Token, "", fmt.Errorf("blocked by network.listen policy: %w", syscall.EACCES), 403, "policy"},
		{"stopped", works.Token, "", ErrNotRunning, 503, "not running"},
		{"paused", works.Token, "", fmt.Errorf("%w: %w", ErrNotRunning, syscall.EAGAIN), 503, "is paused"},
		{"busy VM", works.Token, "", syscall.EAGAIN, 503, "Too busy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			permit = c.permit
			w.wantRefused(t, c.token, c.body, c.status, c.text)
		})
	}
}

// TestRefusedSilent is by itself, for every other answer may take its time.
func TestRefusedSilent(t *testing.T) {
	w := newWorld(t, func(cfg *ServerConfig) { cfg.Limits.ResponseTimeout = 50 * time.Millisecond })
	w.vms.put("dev", 23, listen(t).Addr().String())
	w.wantRefused(t, create(t, w.store, "dev", 23, 0).Token, "", 504, "does not answer")
}

// wantRefused checks the answer that a visitor gets: in both forms of a link, as a page and as text.
func (w *world) wantRefused(t *testing.T, token, body string, status int, text string) {
	t.Helper()
	for form, base := range w.forms(Preview{Token: token}) {
		for accept, kind := range map[string]string{"text/html,*/*": "text/html; charset=utf-8", "*/*": "text/plain; charset=utf-8"} {
			r := w.do(t, "GET", base, body, "Accept: "+accept)
			if r.status != status || !strings.Contains(r.body, text) {
				t.Errorf("%s: status %d\n%s", form, r.status, r.body)
			}
			if r.status == 200 {
				continue
			}
			if got := r.header.Get("Content-Type"); got != kind {
				t.Errorf("%s: %s is answered by %s", form, accept, got)
			}
			if strings.Contains(r.body, token) || strings.Contains(r.body, "<script") {
				t.Errorf("%s: the page tells the token, or has scripts:\n%s", form, r.body)
			}
			if !strings.HasPrefix(r.header.Get("Content-Security-Policy"), "default-src 'none'") || r.header.Get("Referrer-Policy") != "no-referrer" ||
				r.header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s: header %v", form, r.header)
			}
		}
	}
}

// TestRevokedBeforeTheVM checks that the VM is not touched for what is not good, not even by Permit.
func TestRevokedBeforeTheVM(t *testing.T) {
	asked, visits := 0, 0
	w := newWorld(t, func(cfg *ServerConfig) {
		cfg.Permit = func(context.Context, Preview) error { asked++; return nil }
		cfg.Visit = func(Preview) func() { visits++; return func() {} }
	})
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(echo))
	revoked, expired := create(t, w.store, "dev", 3000, 0), create(t, w.store, "dev", 3000, time.Minute)
	if err := w.store.Revoke(t.Context(), revoked.ID); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(time.Minute)
	for _, p := range []Preview{revoked, expired, {Token: "nonsense"}, {Token: strings.Repeat("v", 63)}} {
		for form, base := range w.forms(p) {
			if r := w.get(t, base); r.status != 410 && r.status != 404 {
				t.Errorf("%s: status %d", form, r.status)
			}
		}
	}
	if asked != 0 || visits != 0 || w.vms.count() != 0 {
		t.Errorf("asked %d times, counted %d visits, dialled %d times", asked, visits, w.vms.count())
	}
}

// TestNoticePage: what a visitor or a VM's name has in it is text and no markup, and nothing of it is put in twice.
func TestNoticePage(t *testing.T) {
	page := notice{Title: "<b>$TEXT", Text: `"x" & 'y' $HINT`, Hint: "<script>"}.page()
	for _, want := range []string{"<title>&lt;b&gt;$TEXT</title>", "<h1>&lt;b&gt;$TEXT</h1>", "<p>&#34;x&#34; &amp; &#39;y&#39; $HINT</p>", "<p>&lt;script&gt;</p>"} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is missing in:\n%s", want, page)
		}
	}
	if page := (notice{Title: "a", Text: "b"}).page(); strings.Contains(page, "$") || strings.Contains(page, "<p></p>") {
		t.Errorf("without a hint:\n%s", page)
	}
}

package secret

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func hiding(value string) replacements {
	return replacementsOf([]Secret{{Name: "KEY", Value: value, Hosts: []string{"h.example"}}}, host{"h.example", 443})
}

// escaped writes each byte of text that which accepts by format.
func escaped(text, format string, which func(i int) bool) string {
	var b strings.Builder
	for i, c := range []byte(text) {
		if which(i) {
			fmt.Fprintf(&b, format, c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func capital(c rune) rune {
	if 'a' <= c && c <= 'z' {
		return c - 'a' + 'A'
	}
	return c
}

func quotedJSON(text string) string {
	quoted, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string can be
	}
	return string(quoted[1 : len(quoted)-1])
}

// However a server writes what it was sent, the guest sees the placeholder in its place, and the rest as it is.
func TestSpellings(t *testing.T) {
	all := func(int) bool { return true }
	odd := func(i int) bool { return i%2 == 1 }
	for _, value := range []string{`sk-live_0/1+2 "3"&4<é€😀>=5%6\7`, "sk-live-0123456789", "41424344-abcdef", "p%40ss w%6Frd"} {
		r := hiding(value)
		for name, text := range map[string]string{
			"as it is": value, "in capitals": strings.Map(capital, value), "in a query": url.QueryEscape(value), "in a path": url.PathEscape(value),
			"all escaped": escaped(value, "%%%02x", all), "escaped in part": escaped(value, "%%%02X", odd), "escaped twice": url.QueryEscape(url.QueryEscape(value)),
			"JSON": quotedJSON(value), "ASCII": strings.TrimSuffix(strconv.QuoteToASCII(value)[1:], `"`), "JSON, all": escaped("sk-live", `\u%04x`, all) + value[min(7, len(value)):],
			"HTML": html.EscapeString(value), "HTML, decimal": escaped(value[:4], "&#%d;", all) + value[4:], "HTML in a query": url.QueryEscape(html.EscapeString(value)),
			"quoted-printable": escaped(value, "=%02X", odd), "hexadecimal": hex.EncodeToString([]byte(value)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(value))),
		} {
			if name == "JSON, all" && !strings.HasPrefix(value, "sk-live") {
				continue
			}
			if got := r.hideText("https://h.example/?key=" + text + "&x=%20"); got != "https://h.example/?key="+placeholder+"&x=%20" {
				t.Errorf("%s, %s: %q became %q", value, name, text, got)
			}
		}
		for shift := range 4 {
			for _, after := range []string{"", ":x", ":xy", ":xyz"} {
				plain := strings.Repeat("u", shift) + value + after
				for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding, base64.RawStdEncoding, base64.RawURLEncoding} {
					text := encoding.EncodeToString([]byte(plain))
					for _, text := range []string{text, url.QueryEscape(text)} {
						got := r.hideText("Basic " + text)
						rest := strings.Split(got, placeholder)
						if len(rest) != 2 || len(rest[0]) > len("Basic ")+4*((shift+2)/3) || len(rest[1]) > len("xOnh5eg%3D%3D") {
							t.Errorf("%q as %q became %q", plain, text, got)
						}
					}
				}
			}
		}
	}
}

// What does not tell a secret stays as it is.
func TestNotHidden(t *testing.T) {
	r := append(hiding("ab"), hiding("sk-live-0123456789")...)
	for _, text := range []string{"", "%", "%zz", `\`, `\u12`, "&;", "&amp", "=A", "YWI", "6162x", "text/html; charset=utf-8", "sk-live-012345678"} {
		if got := r.hideText(text); text != "YWI" && text != "6162x" && got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func FuzzHideText(f *testing.F) {
	f.Add("sk-live-0123456789", `%2541\u0041&amp;=41`, uint8(1))
	f.Fuzz(func(t *testing.T, value, text string, every uint8) {
		if value == "" || strings.Contains(strings.ToLower(placeholder), strings.ToLower(value)) {
			return
		}
		r := hiding(value)
		r.hideText(text)
		if got := r.hideText(text + value + text); strings.Count(got, value) > strings.Count(text+text, value) {
			t.Errorf("%q is in %q", value, got)
		}
		partly := escaped(value, "%%%02x", func(i int) bool { return every == 0 || i%int(every) == 0 })
		if got := r.hideText("/?q=" + partly); len(value) >= minEncoded && !strings.Contains(value, "%") && strings.Contains(got, partly) {
			t.Errorf("%q is in %q", partly, got)
		}
	})
}

// answering is a host that gets a secret and answers each connection's first request by these bytes, in which SECRET is what it was sent.
func answering(t *testing.T, answer string) (w *world, asked chan string) {
	w = newWorld(t, "api.example", nil)
	certificate := w.server.TLS.Certificates[0]
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}})
	if err != nil {
		t.Fatal(err)
	}
	asked = make(chan string, 16)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				asked <- r.Method
				_, _ = io.WriteString(c, strings.ReplaceAll(answer, "SECRET", r.Header.Get("X-Key")))
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); <-ended })
	w.address = listener.Addr().String()
	return w, asked
}

// Every place of an answer before and behind its body is searched.
func TestHiddenPlaces(t *testing.T) {
	for name, answer := range map[string]string{
		"values":    "HTTP/1.1 302 SECRET\r\nLocation: https://x.example/?k=SECRET\r\nSet-Cookie: a=SECRET\r\nRefresh: 0;url=/SECRET\r\nLink: <SECRET>\r\nContent-Length: 0\r\n\r\n",
		"names":     "HTTP/1.1 200 OK\r\nSECRET: x\r\nX-SECRET-Y: x\r\nContent-Length: 0\r\n\r\n",
		"interim":   "HTTP/1.1 103 SECRET\r\nLink: </SECRET>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
		"trailers":  "HTTP/1.1 200 OK\r\nTrailer: X-End, SECRET\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-End: SECRET\r\nSECRET: x\r\n\r\n",
		"unnamed":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-End: SECRET\r\nSECRET: x\r\n\r\n",
		"upgrade":   "HTTP/1.1 101 SECRET\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Echo: SECRET\r\n\r\n",
		"other":     "HTTP/1.1 101 OK\r\nConnection: Upgrade\r\nUpgrade: SECRET\r\n\r\n",
		"malformed": "SECRET\r\n\r\n",
		"field":     "HTTP/1.1 200 OK\r\nSECRET\r\n\r\n",
		"status":    "HTTP/1.1 SECRET OK\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := answering(t, answer)
			var lines bytes.Buffer
			w.proxy.config.Logger = slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelDebug}))
			c := tls.Client(w.dial(), &tls.Config{RootCAs: w.guest, ServerName: "api.example"})
			fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: api.example\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\nTE: trailers\r\nX-Key: %s\r\n\r\n", placeholder)
			seen, _ := io.ReadAll(c)
			_ = c.Close()
			_ = w.proxy.Close()
			text := strings.ToLower(string(seen))
			if strings.Contains(text, value) || !strings.Contains(text, strings.ToLower(placeholder)) {
				t.Errorf("the guest sees %s", seen)
			}
			if strings.Contains(strings.ToLower(lines.String()), value) {
				t.Errorf("the log has %s", lines.String())
			}
		})
	}
}

// TRACE is answered with the request, and what follows CONNECT or a change to HTTP/2 has headers that are not searched.
func TestMethodsThatTell(t *testing.T) {
	w := newWorld(t, "api.example", func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, r.Header.Get("Upgrade")) })
	for _, http2 := range []bool{false, true} {
		for _, method := range []string{"TRACE", "trace", "CONNECT"} {
			r, _ := http.NewRequestWithContext(t.Context(), method, "https://api.example/", nil)
			r.Header.Set("X-Key", placeholder)
			answer, err := w.client(http2).Do(r)
			if err != nil {
				t.Fatal(err)
			}
			if answer.Body.Close(); answer.StatusCode != http.StatusMethodNotAllowed || !strings.Contains(answer.Header.Get("Allow"), "GET") {
				t.Errorf("%s, HTTP/2 %t: %s", method, http2, answer.Status)
			}
		}
	}
	if w.asked.Load() != 0 {
		t.Error("the host was asked")
	}
	for _, protocol := range []string{"h2c", "HTTP/2.0", "websocket, h2c", "TLS/1.3"} {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", "https://api.example/", nil)
		r.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {protocol}}
		answer, err := w.client(false).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(answer.Body)
		if answer.Body.Close(); answer.StatusCode != 200 || string(text) != "" {
			t.Errorf("%s: %s, the host was asked for %q", protocol, answer.Status, text)
		}
	}
	if !slices.Contains(upgrades, "websocket") {
		t.Error("WebSockets do not pass") // TestStreamsAndUpgrades has one
	}
}

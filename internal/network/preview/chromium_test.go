package preview

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/websocket"

	"agentvm/internal/network/preview/previewtest"
)

//go:embed testdata/page.html
var browserPage string

// browserGuest is a program in a VM: a page that logs in, and what its script asks for.
func browserGuest(results chan<- map[string]string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "http://"+r.Host+"/page") // as it knows itself
		w.WriteHeader(http.StatusFound)
	})
	mux.HandleFunc("/page", func(w http.ResponseWriter, _ *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "of-the-guest", Path: "/", Domain: "localhost", HttpOnly: true})
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, browserPage)
	})
	mux.HandleFunc("/who", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s cookie=%s origin=%s", r.Method, body, r.Header.Get("Cookie"), r.Header.Get("Origin"))
	})
	mux.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: one\n\n")
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.Handle("/websocket", websocket.Handler(func(c *websocket.Conn) {
		var text string
		if websocket.Message.Receive(c, &text) == nil {
			websocket.Message.Send(c, text+" cookie="+c.Request().Header.Get("Cookie")+" origin="+c.Request().Header.Get("Origin"))
		}
	}))
	mux.HandleFunc("/form", func(w http.ResponseWriter, r *http.Request) {
		got := map[string]string{"form": fmt.Sprintf("cookie=%s origin=%s", r.Header.Get("Cookie"), r.Header.Get("Origin"))}
		if err := json.Unmarshal([]byte(r.PostFormValue("results")), &got); err != nil {
			got["error"] = err.Error()
		}
		select {
		case results <- got:
		default:
		}
	})
	return mux
}

// TestChromium opens previews in a real browser, by both forms. The page uses a redirect, cookies, fetch, events, a WebSocket, a form, and tries
// what pages of other origins may and may not.
func TestChromium(t *testing.T) {
	browser := previewtest.Chromium(t)
	w := newWorld(t, nil)
	results := make(chan map[string]string, 1)
	w.vms.serve(t, "dev", 3000, browserGuest(results))
	w.vms.serve(t, "other", 4000, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s cookie=%s", r.Method, r.Header.Get("Cookie"))
	}))
	p, other := create(t, w.store, "dev", 3000, 0), create(t, w.store, "other", 4000, 0)
	for form, base := range w.forms(p) {
		t.Run(form, func(t *testing.T) {
			cookie := "session=of-the-guest"
			want := map[string]string{
				"fetch":     "POST hello cookie=" + cookie + " origin=http://localhost:3000",
				"get":       "GET  cookie=" + cookie + " origin=",
				"websocket": "hi cookie=" + cookie + " origin=http://localhost:3000",
				"events":    "one",
				"form":      "cookie=" + cookie + " origin=http://localhost:3000",
				"httponly":  "hidden",
				"referrer":  "",
				"foreign":   "PUT cookie=", // preflight, then the request without cookies
				"ambient":   "refused",     // a page of another origin may not have the cookies along
				"wrong":     "404",
			}
			addresses := "#" + other.URL(w.port) + "," + fmt.Sprintf("http://127.0.0.1:%d/p/%s/", w.port, strings.Repeat("0", 63))
			if form == "by path" { // where all paths have one origin
				addresses = "#" + other.URL(w.port) + "," + fmt.Sprintf("/p/%s/", strings.Repeat("0", 63))
			} else {
				want["wrong"] = "refused" // not readable by other origins
			}
			stop := previewtest.Browse(t, browser, base+addresses)
			defer stop()
			select {
			case got := <-results:
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("in the browser (-want +got):\n%s", diff)
				}
			case <-time.After(90 * time.Second):
				t.Error("the page's script did not end")
			}
		})
	}
}

// Previewserver is the program in the VM of TestRealPreview: a page, and what its script talks to. Its argument tells its runs apart.
package main

import (
	_ "embed"
	"fmt"
	"io"
	"net/http"
	"os"

	"golang.org/x/net/websocket"
)

//go:embed page.html
var page string

func main() {
	reports := make(chan string, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "of-run-" + os.Args[1], Path: "/", HttpOnly: true, MaxAge: 3600})
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, page)
	})
	mux.HandleFunc("/run", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, os.Args[1]) })
	mux.HandleFunc("/who", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %s cookie=%s origin=%s", r.Method, body, r.Header.Get("Cookie"), r.Header.Get("Origin"))
	})
	mux.Handle("/websocket", websocket.Handler(func(c *websocket.Conn) {
		var text string
		if websocket.Message.Receive(c, &text) == nil {
			_ = websocket.Message.Send(c, text+" cookie="+c.Request().Header.Get("Cookie"))
		}
	}))
	mux.HandleFunc("POST /report", func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		select {
		case reports <- string(body):
		default:
		}
	})
	mux.HandleFunc("/reported", func(w http.ResponseWriter, r *http.Request) {
		select {
		case report := <-reports:
			_, _ = io.WriteString(w, report)
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("/zeros", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		for zeros := make([]byte, 64<<10); r.Context().Err() == nil; {
			if _, err := w.Write(zeros); err != nil {
				return
			}
		}
	})
	fmt.Fprintln(os.Stderr, http.ListenAndServe("127.0.0.1:3000", mux))
	os.Exit(1)
}

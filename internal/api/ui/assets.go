package ui

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"

	"agentvm/internal/host/embedded"
)

// The page's files. Those of xterm.js, which are compressed, are others', made by assets.sh; everything else is written by hand and used as it is.
//
//go:embed assets/*.html assets/*.css assets/*.js assets/*.svg assets/*.zst
var files embed.FS

// asset is a file of the page.
type asset struct {
	kind, tag string
	body      []byte
}

var kinds = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

func readAssets() (map[string]asset, error) {
	entries, err := files.ReadDir("assets")
	if err != nil {
		return nil, err
	}
	list := map[string]asset{}
	for _, e := range entries {
		body, err := files.ReadFile("assets/" + e.Name())
		name, compressed := strings.CutSuffix(e.Name(), ".zst")
		if err == nil && compressed {
			body, err = embedded.Unpack(e.Name(), body)
		}
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(body)
		list[name] = asset{kinds[path.Ext(name)], `"` + hex.EncodeToString(sum[:12]) + `"`, body}
	}
	return list, nil
}

// policy is the page's Content-Security-Policy. It runs this server's scripts and talks to this server alone, and cannot be framed. Nothing
// makes HTML of a text (trusted types). xterm.js makes style sheets, which get the nonce, and sets attributes "style" of its rows for colours.
const policy = "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-%[1]s'; style-src-attr 'unsafe-inline'; img-src 'self'; " +
	"connect-src 'self' ws://%[2]s; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// page serves the page itself, with a nonce of its own.
func (s *Server) page(w http.ResponseWriter, r *http.Request) {
	nonce := rand.Text()
	host := (&url.URL{Host: r.Host}).Host
	w.Header().Set("Content-Security-Policy", fmt.Sprintf(policy, nonce, host))
	w.Header().Set("Permissions-Policy", "camera=(), microphone=(), geolocation=(), usb=(), serial=(), clipboard-read=()")
	w.Header().Set("Content-Type", kinds[".html"])
	_, _ = w.Write(bytes.ReplaceAll(s.assets["index.html"].body, []byte("NONCE"), []byte(nonce)))
}

// asset serves the other files. They hold no secret; a browser asks each time whether they have changed.
func (s *Server) asset(w http.ResponseWriter, r *http.Request) {
	a, known := s.assets[r.PathValue("name")]
	if !known || a.kind == kinds[".html"] {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", a.kind)
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("ETag", a.tag)
	if r.Header.Get("If-None-Match") == a.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = w.Write(a.body)
}

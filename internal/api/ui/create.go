package ui

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"

	"agentvm/client"
	"agentvm/internal/api/serve"
	"agentvm/internal/settings"
)

// maxNewVM is the longest description of a new VM in bytes.
const maxNewVM = 64 << 10

// newVM is what the page asks for: what a client of the API can, and what is only for the owner of this host's files.
type newVM struct {
	serve.NewVM
	Mounts []string `json:"mounts"` // as --mount takes them, with whole paths
	Ports  []string `json:"ports"`  // as --publish takes them
}

// create makes and starts a VM.
func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	var in newVM
	err := readJSON(w, r, &in, maxNewVM)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := s.untilEnd(r)
	defer cancel()
	made, err := s.api.Create(ctx, in.NewVM,
		serve.Setting{Field: "mounts", Set: func(c *client.Config) error { return s.setMounts(c, in.Mounts) }},
		serve.Setting{Field: "ports", Set: func(c *client.Config) error { return settings.Named("ports").Put(c.Settings(), in.Ports) }})
	if err != nil {
		serve.WriteProblem(w, err)
		return
	}
	writeJSON(w, made)
}

// setMounts reads mounts, which must be of directories that are there.
func (s *Server) setMounts(c *client.Config, texts []string) error {
	whole := slices.Clone(texts)
	for i, text := range texts {
		if rest, is := strings.CutPrefix(text, "~"); is && s.options.Home != "" && (rest == "" || rest[0] == '/' || rest[0] == ':') {
			whole[i] = s.options.Home + rest
		}
	}
	if err := settings.Named("mounts").Put(c.Settings(), whole); err != nil {
		return err
	}
	for i, m := range c.Mounts {
		if !filepath.IsAbs(m.HostPath) {
			return fmt.Errorf("mount %q: write the whole path of the host's directory, as /home/me/src:/src", texts[i])
		}
	}
	if err := c.Validate(); err != nil {
		return err
	}
	_, err := c.Pin()
	return err
}

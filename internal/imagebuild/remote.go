package imagebuild

import (
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strings"
	"sync"
)

// isRemote reports whether a source of ADD is on another host.
func isRemote(name string) bool {
	if _, ok := gitRepository(name); ok {
		return true
	}
	return strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://")
}

// scpLike is git's form user@host:path (git-clone(1), "GIT URLS").
var scpLike = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9_-]+@[a-zA-Z0-9.-]+:[^#]`) })

// gitSource is a git repository that ADD names: URL#ref:folder or URL?ref=ref&subdir=folder.
type gitSource struct{ repository, ref, folder string }

// gitRepository reads a source of ADD as BuildKit does: as a git repository if it has git's or ssh's scheme, git's form user@host:path, or
// a URL of http whose path ends in .git.
func gitRepository(source string) (g gitSource, ok bool) {
	rest, fragment, _ := strings.Cut(source, "#")
	g.repository = rest
	g.ref, g.folder, _ = strings.Cut(fragment, ":")
	if scpLike().MatchString(source) {
		return g, true
	}
	at, err := url.Parse(rest)
	if err != nil {
		scheme, _, _ := strings.Cut(rest, "://")
		return g, scheme == "git" || scheme == "ssh"
	}
	switch at.Scheme {
	case "git", "ssh":
	case "http", "https":
		if !strings.HasSuffix(at.Path, ".git") {
			return g, false
		}
	default:
		return g, false
	}
	query := at.Query()
	for _, key := range []string{"ref", "tag", "branch", "commit", "checksum"} {
		if value := query.Get(key); value != "" {
			g.ref = value
		}
	}
	if folder := query.Get("subdir"); folder != "" {
		g.folder = folder
	}
	at.RawQuery = ""
	g.repository = at.String()
	return g, true
}

// advice is what does the same as ADD of the repository to dest.
func (g gitSource) advice(dest string) string {
	clone := path.Clean(dest)
	if g.folder != "" {
		clone = "/tmp/" + strings.TrimSuffix(path.Base(g.repository), ".git")
	}
	text := fmt.Sprintf("RUN git clone %s %s", g.repository, clone)
	if g.ref != "" {
		text += fmt.Sprintf(" && git -C %s checkout %s", clone, g.ref)
	}
	if g.folder != "" {
		text += fmt.Sprintf(" && cp -a %s %s && rm -r %s", path.Join(clone, g.folder), path.Clean(dest), clone)
	}
	return text
}

// checkSyntax refuses a Dockerfile that another frontend is to read: the directive names an image, and only Docker's own has this language.
func checkSyntax(syntax string) error {
	name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(syntax, "docker.io/"), "index.docker.io/"), "@")
	name, _, _ = strings.Cut(name, ":")
	switch name {
	case "docker/dockerfile", "docker/dockerfile-upstream":
		return nil
	}
	return fmt.Errorf("# syntax=%s: agentvm build reads Dockerfiles by itself, as docker/dockerfile:1 does, and runs no frontends: remove the line if that is what the file is", syntax)
}

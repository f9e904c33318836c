package imagebuild

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestGitRepository(t *testing.T) {
	for source, want := range map[string]*gitSource{
		"https://example.com/a/b.git":                            {"https://example.com/a/b.git", "", ""},
		"http://example.com/b.git#main":                          {"http://example.com/b.git", "main", ""},
		"https://example.com/b.git#:docs":                        {"https://example.com/b.git", "", "docs"},
		"https://example.com/b.git#v1:a/b":                       {"https://example.com/b.git", "v1", "a/b"},
		"https://example.com/b.git?tag=v1&subdir=docs":           {"https://example.com/b.git", "v1", "docs"},
		"https://u:p@example.com:8443/b.git":                     {"https://u:p@example.com:8443/b.git", "", ""},
		"git://example.com/b":                                    {"git://example.com/b", "", ""},
		"ssh://git@example.com:2222/b":                           {"ssh://git@example.com:2222/b", "", ""},
		"git@example.com:a/b.git#v1":                             {"git@example.com:a/b.git", "v1", ""},
		"user_1@example.com:b":                                   {"user_1@example.com:b", "", ""},
		"https://example.com/b.git/info/refs":                    nil,
		"https://example.com/a.tar.gz#b.git":                     nil,
		"https://example.com/?x=b.git":                           nil,
		"https://example.com/b.github":                           nil,
		"file.git":                                               nil,
		"a@b":                                                    nil,
		"/abs@olute:x":                                           nil,
		"HTTPS://example.com/b.tar":                              nil,
		"https://raw.example.com/a.git" + strings.Repeat("x", 9): nil,
	} {
		got, ok := gitRepository(source)
		if ok != (want != nil) {
			t.Errorf("%s: %v", source, ok)
		} else if ok && cmp.Diff(*want, got, cmp.AllowUnexported(gitSource{})) != "" {
			t.Errorf("%s: %+v", source, got)
		}
	}
}

func TestCheckSyntax(t *testing.T) {
	for syntax, ok := range map[string]bool{
		"docker/dockerfile:1": true, "docker.io/docker/dockerfile:1.7-labs": true, "docker/dockerfile": true,
		"docker/dockerfile@sha256:00": true, "docker/dockerfile-upstream:master": true,
		"example.com/frontend:1": false, "docker/dockerfile-x": false, "tonistiigi/dockerfile:runmount": false,
	} {
		if err := checkSyntax(syntax); (err == nil) != ok {
			t.Errorf("%s: %v", syntax, err)
		}
	}
}

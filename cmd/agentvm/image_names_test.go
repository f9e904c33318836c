package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentvm/client"
	api "agentvm/internal/api/serve"
	"agentvm/internal/httpserver"
)

// TestImageNames names images that can be none at each command and server that takes one: all refuse them in the same words, before they serve or
// make anything.
func TestImageNames(t *testing.T) {
	dir := t.TempDir()
	storeDir := filepath.Join(dir, "store")
	env := append(os.Environ(), "AGENTVM_STORE="+storeDir, "AGENTVM_ALPINE_MIRROR=http://127.0.0.1:1")
	store, err := client.OpenStore(client.StoreOptions{Dir: storeDir, Program: "/nonexistent/agentvm"})
	if err != nil {
		t.Fatal(err)
	}
	const key = "a-key-of-the-tests"
	server, err := api.New(api.Options{Store: store, Keys: httpserver.Keys{{Name: "test", Value: key}}})
	if err != nil {
		t.Fatal(err)
	}
	listener := httptest.NewServer(server.Handler())
	defer listener.Close()
	serve := func(image string) string {
		t.Helper()
		body, err := json.Marshal(map[string]string{"name": "dev", "image": image})
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(t.Context(), "POST", listener.URL+"/v1/vms", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+key)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		var problem struct{ Field, Detail string }
		if err := json.NewDecoder(answer.Body).Decode(&problem); err != nil || answer.StatusCode != http.StatusBadRequest || problem.Field != "image" {
			t.Errorf("serve, image %q: %s, field %q: %s", image, answer.Status, problem.Field, problem.Detail)
		}
		return problem.Detail
	}
	commands := map[string][]string{
		"exec":     {"exec", "--image", "IMAGE", "true"},
		"run":      {"run", "--rm", "IMAGE", "true"},
		"start":    {"start", "--image", "IMAGE", "dev"},
		"e2b":      {"e2b", "--listen", "127.0.0.1:0", "--image", "IMAGE"},
		"sandboxd": {"sandboxd", "--image", "IMAGE"},
		"mcp":      {"mcp", "--vm", "dev", "--image", "IMAGE"},
		"build":    {"build", "-f", "Dockerfile", "."},
		"pull":     {"image", "pull", "IMAGE"},
	}
	for image, want := range map[string]string{
		"Alpine":                "use lower-case letters, digits and . _ - /",
		"a b":                   "use lower-case letters, digits and . _ - /",
		"http://registry.test/": "use lower-case letters, digits and . _ - /",
		"./rootfs.tar":          "this is a path: name an archive of docker save as docker-archive:FILE",
		"../images/rootfs":      "this is a path: name an archive of docker save as docker-archive:FILE",
		"/images/rootfs.tar":    "this is a path: name an archive of docker save as docker-archive:FILE",
		"docker-daemon:alpine":  "agentvm does not read docker-daemon: save the image first",
		"docker:alpine":         "write docker://NAME",
		"alpine:newest":         "the version of Alpine is latest, or as",
	} {
		if got := serve(image); !strings.Contains(got, want) {
			t.Errorf("serve, image %q: %s", image, got)
		}
		for name, args := range commands {
			if name == "build" && strings.ContainsAny(image, " ") {
				continue // two words of a Dockerfile
			}
			if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM "+image+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			var given []string
			for _, arg := range args {
				given = append(given, strings.ReplaceAll(arg, "IMAGE", image))
			}
			command := exec.CommandContext(ctx, "agentvm", given...)
			command.Env, command.Dir = env, dir
			out, err := command.CombinedOutput()
			cancel()
			if err == nil || !strings.Contains(string(out), want) {
				t.Errorf("%s, image %q: %v: %s", name, image, err, out)
			}
		}
	}
	if names := store.Names(); len(names) > 0 {
		t.Errorf("there are VMs %q", names)
	}
}

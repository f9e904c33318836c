package vm_test

import (
	"archive/tar"
	"bytes"
	"io"
	"strings"
	"testing"

	"agentvm/images"
	"agentvm/vm"
)

// importWith imports the built-in root with one file more into the store of c.
func importWith(t *testing.T, c *vm.Config, name string, content []byte) *images.Image {
	t.Helper()
	store, err := images.Open(c.StoreDir)
	if err != nil {
		t.Fatal(err)
	}
	base, err := store.Pull(t.Context(), images.BuiltinName, nil)
	if err != nil {
		t.Fatal(err)
	}
	root, err := store.OpenLayer(base, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	var archive bytes.Buffer
	in, out := tar.NewReader(root), tar.NewWriter(&archive)
	for {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := out.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(out, in); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	image, err := store.Import(t.Context(), "mine", &archive)
	if err != nil {
		t.Fatal(err)
	}
	c.Image = image.Name
	return image
}

// TestApkAsksTheMirror: Alpine's own server in the list of repositories is replaced by the host's mirror, other repositories are not.
func TestApkAsksTheMirror(t *testing.T) {
	const list = "https://dl-cdn.alpinelinux.org/alpine/v3.20/main\nhttp://dl-cdn.alpinelinux.org/alpine/v3.20/community\n" +
		"https://other.example/alpine/v3.20/main\n#https://dl-cdn.alpinelinux.org/alpine/edge/main\n"
	for _, test := range []struct {
		mirror, content, want string
	}{
		{"https://mirror.example/pub/alpine/", list, "https://mirror.example/pub/alpine/v3.20/main\nhttps://mirror.example/pub/alpine/v3.20/community\n" +
			"https://other.example/alpine/v3.20/main\n#https://dl-cdn.alpinelinux.org/alpine/edge/main\n"},
		{"http://127.0.0.1:1/alpine", list, list},
		{"http://localhost:1/alpine", list, list},
		{"https://user:password@mirror.example/alpine", list, list},
		{"https://mirror.example/alpine", "https://dl-cdn.alpinelinux.org/alpine/" + strings.Repeat("x", 65<<10), ""},
	} {
		c := config(t)
		c.StoreDir, c.ColdBoot = t.TempDir(), true
		t.Setenv("AGENTVM_ALPINE_MIRROR", test.mirror)
		importWith(t, &c, "etc/apk/repositories", []byte(test.content))
		v, err := vm.Start(limited(t), c)
		if err != nil {
			t.Fatal(err)
		}
		if test.want == "" {
			test.want = test.content
		}
		if got, err := v.ReadFile(limited(t), "/etc/apk/repositories"); err != nil || string(got) != test.want {
			t.Errorf("with %s: %.500q, %v", test.mirror, got, err)
		}
		v.Close()
	}
}

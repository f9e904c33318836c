package imagebuild

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"agentvm/images"
	"agentvm/internal/host/platform"
	"agentvm/vm"
)

// options are those of a build in an empty store, of the files of a context.
func options(t *testing.T, dockerfile string, files map[string]string) Options {
	t.Helper()
	store, err := images.Open(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return Options{
		Store: store, Context: root, ContextDir: dir, Dockerfile: []byte(dockerfile), File: "Dockerfile", Name: "app",
		VM: vm.Config{StoreDir: store.Dir(), Memory: 128 << 20, Network: vm.Network{Disabled: true}},
		Resolve: func(ctx context.Context, name string, of platform.Architecture) (*images.Image, error) {
			return store.For(of).Resolve(ctx, name)
		},
	}
}

// contents lists the files of an image: mode, owner, and content or target.
func contents(t *testing.T, o Options, image *images.Image) map[string]string {
	t.Helper()
	b := &builder{Options: o, spool: t.TempDir()}
	defer func() {
		for _, f := range b.spools {
			_ = f.Close()
		}
	}()
	_, layers, err := o.Store.Configuration(t.Context(), image)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := b.treeOf(t.Context(), layers)
	if err != nil {
		t.Fatal(err)
	}
	list := map[string]string{}
	err = tree.root.walk("", func(name string, n *node) error {
		h := n.header
		text := fmt.Sprintf("%c%o %d:%d", h.Typeflag, h.Mode&0o7777, h.Uid, h.Gid)
		switch {
		case h.Typeflag == tar.TypeSymlink:
			text += " -> " + h.Linkname
		case n.open != nil && h.Size < 1000:
			var b bytes.Buffer
			if err := copyNode(&b, n); err != nil {
				return err
			}
			text += " " + b.String()
		}
		list[name] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func wantFiles(t *testing.T, got, want map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Errorf("%s: got %q, want %q", name, got[name], want[name])
		}
	}
}

const dockerfile = `ARG BASE=busybox
FROM ${BASE} AS base
ARG WHO=world
ENV GREETING="hello $WHO" PATH=$PATH:/app/bin
WORKDIR /app
COPY --chmod=755 src/ bin/
COPY <<EOF /app/note
greeting: $GREETING
EOF
RUN echo "$GREETING" >made; mkdir /tmp/x; touch /tmp/x/y; chown 12:13 made; ln -s made link; chmod 4755 bin/tool; mkfifo pipe
RUN test -e /tmp/x/y && rm -r /tmp/x && mv note moved && rm -r /var/empty 2>/dev/null; echo more >>made
RUN <<EOF
#!/bin/sh
echo "script $0" >script
EOF
RUN --mount=type=secret,id=token test "$(cat /run/secrets/token)" = secret
RUN --mount=type=cache,target=/cache echo x >>/cache/count; cp /cache/count /count; rm -rf /etc/profile; mkdir -p /etc/profile
RUN --mount=type=bind,source=src,target=/bound,rw cat /bound/tool >/from-bind && touch /bound/own
RUN --mount=type=bind,source=src,target=/bound ! test -e /bound/own && ! touch /bound/own 2>/dev/null
FROM base AS unused
RUN exit 1
FROM scratch AS files
COPY --from=base --chown=1:2 /app/made /app/link /copied/
FROM base
COPY --from=files /copied/made /copied
ADD archive.tar /unpacked/
LABEL a=b c="d e"
EXPOSE 80 90-91/udp
USER 12:13
VOLUME /data
STOPSIGNAL SIGINT
HEALTHCHECK --interval=5s CMD true
ENTRYPOINT ["cat"]
CMD ["/copied"]
`

func archiveFile(t *testing.T) string {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, err := range []error{
		w.WriteHeader(&tar.Header{Name: "dir/", Typeflag: tar.TypeDir, Mode: 0o711}),
		w.WriteHeader(&tar.Header{Name: "dir/file", Typeflag: tar.TypeReg, Mode: 0o640, Size: 3, Uid: 7}),
		func() error { _, err := w.Write([]byte("abc")); return err }(),
		w.WriteHeader(&tar.Header{Name: "../out", Typeflag: tar.TypeReg, Mode: 0o600}),
		w.Close(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// TestBuild builds in real VMs, twice: the second time nothing is done again; and once more with a changed file.
func TestBuild(t *testing.T) {
	files := map[string]string{"src/tool": "#!/bin/sh\necho tool\n", "src/ignored.o": "x", ".dockerignore": "**/*.o\n", "archive.tar": archiveFile(t)}
	o := options(t, dockerfile, files)
	o.Secrets = map[string][]byte{"token": []byte("secret")}
	o.Args = map[string]string{"WHO": "you"}
	var out bytes.Buffer
	o.Output = &out
	image, err := Build(t.Context(), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.Bytes())
	}
	got := contents(t, o, image)
	wantFiles(t, got, map[string]string{
		"app/made": "0644 12:13 hello you\nmore\n", "app/link": "2777 0:0 -> made", "app/moved": "0644 0:0 greeting: hello you\n", "app/note": "",
		"app/bin": "5755 0:0", "app/bin/tool": "04755 0:0 " + files["src/tool"], "app/bin/ignored.o": "", "app/pipe": "6644 0:0",
		"app/script": "0644 0:0 script /run/agentvm-build/script\n", "tmp/x": "", "count": "0644 0:0 x\n", "cache/count": "", "run/secrets/token": "",
		"from-bind": "0644 0:0 " + files["src/tool"], "bound/own": "", "copied": "0644 1:2 hello you\nmore\n",
		"unpacked/dir": "5711 0:0", "unpacked/dir/file": "0640 7:0 abc", "unpacked/out": "0600 0:0 ", "out": "",
	})
	if profile := got["etc/profile"]; !strings.HasPrefix(profile, "5") {
		t.Errorf("a file that became a directory: %q", profile)
	}
	for name := range got {
		if strings.Contains(name, ".wh.") || name == "etc/resolv.conf" && got[name] != contents(t, o, must(o.Store.Find("busybox")))[name] {
			t.Errorf("the image has %s", name)
		}
	}
	config, _, err := o.Store.Configuration(t.Context(), image)
	if err != nil {
		t.Fatal(err)
	}
	c := config.Config
	if c.User != "12:13" || c.WorkingDir != "/app" || c.StopSignal != "SIGINT" || !slices.Equal(c.Entrypoint, []string{"cat"}) ||
		!slices.Equal(c.Cmd, []string{"/copied"}) || c.Labels["c"] != "d e" || len(c.ExposedPorts) != 3 || len(c.Volumes) != 1 ||
		c.Healthcheck == nil || c.Healthcheck.Interval != 5*time.Second || !slices.Contains(c.Env, "GREETING=hello you") {
		t.Errorf("configuration: %+v", c)
	}
	if image, err := o.Store.Find("localhost/agentvm-build"); err == nil {
		t.Errorf("left behind: %s", image.Name)
	}

	out.Reset()
	again, err := Build(t.Context(), o)
	if err != nil || again.Name != image.Name {
		t.Fatalf("again: %v\n%s", err, out.Bytes())
	}
	for line := range strings.Lines(out.String()) {
		if _, step, ok := strings.Cut(line, "] "); ok && (strings.HasPrefix(step, "RUN") || strings.HasPrefix(step, "COPY") || strings.HasPrefix(step, "ADD")) {
			t.Errorf("done again: %s", line)
		}
	}
	if err := os.WriteFile(filepath.Join(o.ContextDir, "src", "tool"), []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if image, err = Build(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	wantFiles(t, contents(t, o, image), map[string]string{"app/bin/tool": "04755 0:0 other", "count": "0644 0:0 x\nx\n"})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestBuiltImageRuns runs what was built, and that no secret is in it.
func TestBuiltImageRuns(t *testing.T) {
	o := options(t, "FROM busybox\nCOPY hello /hello\nENV A=b\nUSER 5:6\nWORKDIR /w\n", map[string]string{"hello": "hello\n"})
	image, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	v, err := vm.Start(t.Context(), vm.Config{Image: image.Name, StoreDir: o.Store.Dir(), Network: vm.Network{Disabled: true}})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	r, err := v.Exec(t.Context(), "cat /hello; echo $A; id -u; id -g; pwd")
	if err != nil || string(r.Stdout) != "hello\nb\n5\n6\n/w\n" {
		t.Errorf("%v, %+v", err, r)
	}
}

// TestReproducible has the same input make the same image, in two stores and at two times.
func TestReproducible(t *testing.T) {
	var digests []string
	for range 2 {
		o := options(t, "FROM busybox\nWORKDIR /new/dir\nCOPY f ./\nRUN date >/dev/null; mkdir d; echo x >d/e\n", map[string]string{"f": "x"})
		o.Epoch = time.Unix(1_700_000_000, 0).UTC()
		image, err := Build(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		_, layers, err := o.Store.Configuration(t.Context(), image)
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, fmt.Sprint(layers))
		time.Sleep(1100 * time.Millisecond)
	}
	if digests[0] != digests[1] {
		t.Errorf("%s\n%s", digests[0], digests[1])
	}
}

// TestRefused has errors that name the line and what is wrong, and leave no image.
func TestRefused(t *testing.T) {
	for _, test := range []struct{ dockerfile, want string }{
		{"", "no instructions|there is no FROM|empty"},
		{"RUN x\n", "no build stage"},
		{"FROM busybox\nFROBNICATE x\n", "Dockerfile:2: .*unknown instruction"},
		{"FROM busybox\nCOPY missing /x\n", `Dockerfile:2: COPY missing /x: "missing": not found`},
		{"FROM busybox\nCOPY *.none /x/\n", "not found"},
		{"FROM busybox\nCOPY a b /x\n", "several files"},
		{"FROM busybox\nCOPY out /x\n", "Dockerfile:2"},
		{"FROM busybox\n\nRUN exit 7\n", "Dockerfile:3: RUN exit 7: .*exit code 7"},
		{"FROM busybox\nCOPY --chown=someone a /x\n", "someone"},
		{"FROM busybox\nCOPY --chmod=99 a /x\n", "chmod"},
		{"FROM busybox\nADD http://127.0.0.1:1/x /x\n", "network is disabled"},
		{"FROM --platform=linux/amd64 busybox\nCOPY a /x\n", "VMs do not run programs for x86 processors: write linux/riscv64 or linux/arm64"},
		{"FROM --platform=linux/arm64 scratch AS a\nCOPY a /x\nFROM --platform=linux/riscv64 a\nCOPY b /y\n", "the stage a is for linux/arm64"},
		{"FROM busybox\nEXPOSE 99999\n", "port"},
		{"FROM busybox\nRUN --mount=type=ssh true\n", "type=ssh"},
		{"FROM busybox\nRUN --mount=type=secret,id=s,required=true true\n", `secret "s" was not given`},
		{"FROM busybox\nRUN --mount=type=bind,source=out,target=/x true\n", "no directory of the context"},
		{"FROM busybox\nRUN --device=vendor.com/gpu,required=true true\n", "VMs have no such devices"},
		{"# syntax=example.com/frontend:1\nFROM busybox\nCOPY a /x\n", "runs no frontends"},
		{"FROM scratch\nRUN x\n", "no files yet"},
		{"FROM scratch\nENV a=b\n", "no files"},
		{"FROM $NOTHING\n", "no image"},
		{"FROM busybox\nCOPY --from=7 /x /y\n", "7"},
		{"FROM busybox\nCOPY a /bin\nCOPY a /bin/sh/x\n", "not a directory"},
	} {
		o := options(t, test.dockerfile, map[string]string{"a": "a", "b": "b"})
		if err := os.Symlink("/etc/passwd", filepath.Join(o.ContextDir, "out")); err != nil {
			t.Skip(err)
		}
		image, err := Build(t.Context(), o)
		if err == nil || !matches(test.want, err.Error()) {
			t.Errorf("%q: got %v, %v, want %s", test.dockerfile, image, err, test.want)
		}
		if _, err := o.Store.Find("app"); err == nil {
			t.Errorf("%q has left an image", test.dockerfile)
		}
	}
}

// TestCancelled ends a build in the midst of a RUN.
func TestCancelled(t *testing.T) {
	o := options(t, "FROM busybox\nRUN echo begun; sleep 1000\n", nil)
	ctx, cancel := context.WithCancel(t.Context())
	o.Output = writerFunc(func(p []byte) {
		if string(p) == "begun\n" {
			cancel()
		}
	})
	if _, err := Build(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }

// TestOnBuild carries out a base's triggers.
func TestOnBuild(t *testing.T) {
	o := options(t, "FROM busybox\nONBUILD COPY a /from-trigger\n", map[string]string{"a": "a"})
	o.Name = "base"
	o.Dockerfile = []byte("FROM busybox\nONBUILD COPY a /from-trigger\n")
	if _, err := Build(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	o.Name, o.Dockerfile = "app", []byte("FROM base\nENV x=y\n")
	image, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	wantFiles(t, contents(t, o, image), map[string]string{"from-trigger": "0644 0:0 a"})
}

// TestCachedLayersStay keeps the layers of steps when an image is removed.
func TestCachedLayersStay(t *testing.T) {
	o := options(t, "FROM busybox\nCOPY a /a\n", map[string]string{"a": "a"})
	if _, err := Build(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if err := o.Store.Remove(t.Context(), "app"); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	o.Output = &out
	if _, err := Build(t.Context(), o); err != nil || !strings.Contains(out.String(), "CACHED COPY") {
		t.Errorf("%v\n%s", err, out.Bytes())
	}
}

func layer(t *testing.T, headers ...tar.Header) io.Reader {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		data := h.PAXRecords["data"]
		h.PAXRecords, h.Size = nil, int64(len(data))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// TestTree stacks layers with whiteouts, opaque directories, and entries below links.
func TestTree(t *testing.T) {
	spool, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer spool.Close()
	file := func(name, data string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, PAXRecords: map[string]string{"data": data}}
	}
	link := func(name, to string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
	}
	tr := newTree()
	for _, l := range []io.Reader{
		layer(t, file("usr/lib/a", "1"), link("lib", "usr/lib"), file("dir/low", "2"), file("gone", "3"), link("loop", "loop"), link("ring", "ring"), link("up", "../../..")),
		layer(t, file("lib/b", "4"), file("dir/.wh..wh..opq", ""), file("dir/new", "5"), file(".wh.gone", ""), file("up/etc/x", "6"), file("loop/y", "7")),
	} {
		if err := tr.addArchive(t.Context(), l, spool); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"/lib/a": "1", "/usr/lib/b": "4", "/dir/new": "5", "/dir/low": "-", "/gone": "-", "/etc/x": "6", "/lib/../../lib/b": "4",
	} {
		_, n, err := tr.resolve(name, true)
		got := "-"
		if err == nil && n != nil {
			var b bytes.Buffer
			if err := copyNode(&b, n); err != nil {
				t.Fatal(err)
			}
			got = b.String()
		}
		if got != want {
			t.Errorf("%s: got %s, %v, want %s", name, got, err, want)
		}
	}
	if _, _, err := tr.resolve("/ring/x", true); err == nil {
		t.Error("a loop of links leads somewhere")
	}
	if found, err := tr.glob("/*/[ab]"); err != nil || fmt.Sprint(found) != "[lib/a lib/b]" {
		t.Errorf("glob: %v, %v", found, err)
	}
}

// FuzzDockerfile builds whatever is no RUN, from a small context.
func FuzzDockerfile(f *testing.F) {
	for _, text := range []string{dockerfile, "FROM scratch\nCOPY . /\nCOPY --from=0 / /x/\n", "FROM scratch\nADD a* /x\nWORKDIR ..\nENV $a=${b:-c}\n"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		o := options(t, text, map[string]string{"a": "a", "dir/b": "b", ".dockerignore": "*.o"})
		o.Resolve = func(context.Context, string, platform.Architecture) (*images.Image, error) {
			return nil, images.ErrNotFound
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if strings.Contains(strings.ToUpper(text), "RUN") {
			o.VM.Memory = 1 // no VM starts
		}
		image, err := Build(ctx, o)
		if errors.Is(err, context.DeadlineExceeded) || err == nil && image == nil {
			t.Errorf("%v, %v", image, err)
		}
	})
}

func matches(pattern, text string) bool {
	ok, err := regexp.MatchString("(?s)"+pattern, text)
	return err == nil && ok
}

// importFor puts an image called app/base for an architecture into the store, with one file that names it.
func importFor(t *testing.T, store *images.Store, a platform.Architecture) {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "is", Mode: 0o644, Size: int64(len(a))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(a)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := store.For(a).Import(t.Context(), "app/base", &archive); err != nil {
		t.Fatal(err)
	}
}

// TestPlatform builds for each platform from bases of one name: a FROM has that of the image unless it names another, and so have the
// images that COPY --from names.
func TestPlatform(t *testing.T) {
	const dockerfile = `FROM --platform=linux/riscv64 app/base AS fixed
FROM --platform=$BUILDPLATFORM app/base AS built
FROM app/base
ARG TARGETARCH
ARG TARGETPLATFORM
ARG TARGETVARIANT
ENV SEEN=$TARGETARCH,$TARGETPLATFORM,$TARGETVARIANT
COPY --from=fixed /is /fixed
COPY --from=built /is /built
COPY --from=app/base /is /copied
`
	o := options(t, dockerfile, nil)
	importFor(t, o.Store, platform.ARM64)
	o.Dockerfile = []byte("ARG BASE=$TARGETARCH\nFROM scratch AS arm64\nCOPY --from=app/base /is /copied\nFROM app/base AS first\nFROM first\nARG BASE\nENV SEEN=$BASE\nCOPY --from=arm64 /copied /copied\n")
	if image, err := Build(t.Context(), o); err != nil || image.Architecture != platform.ARM64 || !slices.Contains(image.Env, "SEEN=arm64") {
		t.Errorf("from an image that is for arm64 alone: %+v, %v", image, err)
	}
	if err := o.Store.Remove(t.Context(), "app"); err != nil {
		t.Fatal(err)
	}
	o.Dockerfile = []byte(dockerfile)
	importFor(t, o.Store, platform.RISCV64)
	for _, given := range []platform.Architecture{"", platform.ARM64} {
		o.Platform = given
		of := cmp.Or(given, platform.RISCV64)
		image, err := Build(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if image.Architecture != of || !slices.Contains(image.Env, "SEEN="+string(of)+","+of.Platform()+",") {
			t.Errorf("built for %q: %+v", given, image)
		}
		file := func(content platform.Architecture) string { return "0644 0:0 " + string(content) }
		wantFiles(t, contents(t, o, image), map[string]string{"is": file(of), "fixed": file(platform.RISCV64), "built": file(of), "copied": file(of)})
	}
	for _, a := range platform.Supported() {
		if image, err := o.Store.For(a).Find("app"); err != nil || image.Architecture != a {
			t.Errorf("the store has %+v for %s, %v", image, a, err)
		}
	}
	o.Dockerfile, o.Platform = []byte("FROM busybox\nRUN uname -m >/machine\n"), platform.ARM64
	if image, err := Build(t.Context(), o); err != nil {
		t.Error(err)
	} else if got := contents(t, o, image)["machine"]; got != "0644 0:0 aarch64\n" {
		t.Errorf("a RUN for arm64 was in %q", got)
	}
	o.Dockerfile, o.Platform = []byte("FROM --platform=arm64 scratch\nCOPY --from=app/base /is /is\n"), ""
	if image, err := Build(t.Context(), o); err != nil || image.Architecture != platform.ARM64 || contents(t, o, image)["is"] != "0644 0:0 arm64" {
		t.Errorf("a stage that names its platform is %+v, %v", image, err)
	}
}

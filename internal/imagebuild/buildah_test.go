//go:build linux

package imagebuild

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"agentvm/images/imagestest"
	"agentvm/internal/host/platform"
)

// compared are Dockerfiles of which agentvm and buildah are to make the same image. BASE is Alpine: for riscv64 here, and for the host's
// processor there, where RUN runs on the host.
var compared = map[string]string{
	"copy": "FROM BASE\nWORKDIR /app\nCOPY src /app/src\nCOPY --chown=3:4 --chmod=750 src/tool src/two /app/bin/\nCOPY src/*.txt ./\nCOPY src/tool /usr/local/bin/renamed\nCOPY src /etc\n",
	"run": "FROM BASE\nRUN rm -r /etc/opt /etc/motd; mkdir -m 1777 /drop; echo x >/drop/a; ln /drop/a /drop/b; ln -s ../drop /etc/link; chown 7:8 /drop/b; chmod 4711 /drop/a\n" +
		"RUN echo more >>/etc/issue; mkfifo /drop/pipe; rm -r /media; mkdir /media; touch /media/new\n",
	"stages":     "FROM BASE AS one\nRUN mkdir -p /o/d && echo 1 >/o/d/f && chown -R 5:6 /o && ln -s d/f /o/l\nFROM one AS two\nRUN echo 2 >>/o/d/f\nFROM BASE\nCOPY --from=two /o /copy\nCOPY --from=two --chown=9 /o/l /single\nCOPY --from=one /o/d/f /o/l /both/\n",
	"archives":   "FROM BASE\nADD a.tar /plain/\nADD a.tar.gz a.tar.bz2 /packed/\nADD a.tar.xz /xz/\nADD src/tool /tool\nADD note.gz /note/\nCOPY a.tar /kept/\n",
	"user":       "FROM BASE\nRUN adduser -D -u 77 worker\nUSER worker\nWORKDIR /home/worker/made\nWORKDIR below\nRUN id -u >/tmp/id; id -g >>/tmp/id; pwd >>/tmp/id\nCOPY --chown=worker:worker src/tool mine\n",
	"variables":  "ARG V=1\nFROM BASE\nARG V\nARG W=two\nENV A=a B=\"b $W\" C=${V:-none}\nENV PATH=$PATH:/x A=${A}${A}\nLABEL l=\"$B\"\nWORKDIR /$A\nSHELL [\"/bin/sh\", \"-e\", \"-c\"]\nRUN echo \"$A $B $C $V $W\" >out\nCOPY src/tool $C\n",
	"settings":   "FROM scratch\nCOPY src/tool /\nLABEL a=b \"c d\"=e\nEXPOSE 80 90/udp\nVOLUME /data /more\nSTOPSIGNAL SIGINT\nUSER 1:2\nENTRYPOINT [\"/tool\", \"x\"]\nCMD [\"a\", \"b\"]\nHEALTHCHECK --interval=5s --retries=2 CMD true x\nONBUILD RUN x\n",
	"ignored":    "FROM scratch\nCOPY . /all/\nCOPY src /src\n",
	"over":       "FROM BASE\nRUN mkdir -p /a/b /real && ln -s /real /linked && echo old >/a/file\nCOPY src/tool /a/file\nCOPY src /linked/\nCOPY src/two /linked/sub/\nCOPY src/tool src/two /a/b/\nRUN rm /a/b/two\n",
	"shell-form": "FROM BASE\nENV X=y\nENTRYPOINT echo $X\nCMD echo hi\nRUN [\"/bin/sh\", \"-c\", \"echo $X >/exec\"]\nRUN set -e; \\\n  for i in 1 2 3; do echo $i; done >/loop\nRUN --mount=type=tmpfs,target=/t touch /t/x && ls /t >/seen\n",
}

// TestSameAsBuildah is run by make buildah: it needs buildah, root, and Alpine for this processor too.
func TestSameAsBuildah(t *testing.T) {
	if os.Getenv("AGENTVM_TEST_BUILDAH") == "" {
		t.Skip("make buildah runs this")
	}
	folder, ok := imagestest.Folder(t)
	if !ok {
		t.Fatal("no folder of Alpine releases: set " + imagestest.FolderEnv)
	}
	dir := t.TempDir()
	settings := v1.Config{Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, Cmd: []string{"/bin/sh"}}
	bases := map[string]string{"riscv64": filepath.Join(dir, "ours.tar"), "x86_64": filepath.Join(dir, "theirs.tar")}
	for arch, file := range bases {
		if err := imagestest.WriteDockerArchive(file, "base:1", settings, filepath.Join(folder, "alpine-minirootfs-3.20.3-"+arch+".tar.gz")); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range compared {
		t.Run(name, func(t *testing.T) {
			archive := archiveFile(t)
			files := map[string]string{
				"src/tool": "tool\n", "src/two": "two\n", "src/a.txt": "a\n", "src/b.txt": "b\n", "src/deep/er/file": "deep\n", "skipped/x": "x", "skipped/kept": "kept", "src/x.o": "o",
				"a.tar": archive, ".dockerignore": "skipped/*\n!skipped/kept\n**/*.o\nDockerfile\n", "a.tar.xz": string(xzArchive),
			}
			o := options(t, strings.ReplaceAll(text, "BASE", "docker-archive:"+bases["riscv64"]), files)
			for file, command := range map[string]string{"a.tar.gz": "gzip -nk a.tar", "a.tar.bz2": "bzip2 -k a.tar", "note.gz": "echo note | gzip -n >note.gz"} {
				c := exec.Command("sh", "-c", command)
				c.Dir = o.ContextDir
				if out, err := c.CombinedOutput(); err != nil {
					t.Fatalf("%s: %v\n%s", file, err, out)
				}
			}
			image, err := Build(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			config, _, err := o.Store.Configuration(t.Context(), image)
			if err != nil {
				t.Fatal(err)
			}
			theirs := buildah(t, dir, o.ContextDir, strings.ReplaceAll(text, "BASE", "docker-archive:"+bases["x86_64"]))
			other, err := theirs.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			delete(other.Config.Labels, "io.buildah.version")
			if diff := cmp.Diff(settingsOf(other.Config), settingsOf(config.Config)); diff != "" {
				t.Errorf("settings, - buildah, + agentvm:\n%s", diff)
			}
			ours, want := contents(t, o, image), flat(t, theirs)
			delete(ours, "") // the root, which buildah's layers do not name
			if strings.Contains(text, "BASE") {
				base, err := o.Resolve(t.Context(), "docker-archive:"+bases["riscv64"], platform.RISCV64)
				if err != nil {
					t.Fatal(err)
				}
				dropSame(ours, contents(t, o, base))
				img, err := tarball.ImageFromPath(bases["x86_64"], nil)
				if err != nil {
					t.Fatal(err)
				}
				dropSame(want, flat(t, img))
			}
			if diff := cmp.Diff(want, ours); diff != "" {
				t.Errorf("files, - buildah, + agentvm:\n%s", diff)
			}
		})
	}
}

// buildah builds with the other program.
func buildah(t *testing.T, dir, contextDir, dockerfile string) v1.Image {
	t.Helper()
	file := filepath.Join(t.TempDir(), "Dockerfile")
	if err := os.WriteFile(file, []byte(dockerfile), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out.tar")
	storage := []string{"--storage-driver", "vfs", "--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run")}
	for _, args := range [][]string{
		{"bud", "--isolation", "chroot", "--format", "docker", "--layers", "--platform", platform.RISCV64.Platform(), "-q", "-t", "out", "-f", file, contextDir},
		{"push", "-q", "out", "docker-archive:" + out},
	} {
		c := exec.Command("buildah", append(slices.Clone(storage), args...)...)
		c.Env = append(os.Environ(), "HOME="+dir)
		if text, err := c.CombinedOutput(); err != nil {
			t.Fatalf("buildah %q: %v\n%s", args, err, text)
		}
	}
	image, err := tarball.ImageFromPath(out, nil)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// settingsOf is what of a configuration is compared.
func settingsOf(c v1.Config) map[string]string {
	health := ""
	if c.Healthcheck != nil {
		health = fmt.Sprintf("%+v", *c.Healthcheck)
	}
	return map[string]string{
		"env": fmt.Sprintf("%q", slices.Sorted(slices.Values(c.Env))), "entrypoint": fmt.Sprintf("%q", c.Entrypoint), "cmd": fmt.Sprintf("%q", c.Cmd), "user": c.User, "dir": c.WorkingDir,
		"labels": fmt.Sprint(c.Labels), "ports": fmt.Sprint(slices.Sorted(maps.Keys(c.ExposedPorts))), "volumes": fmt.Sprint(slices.Sorted(maps.Keys(c.Volumes))),
		"stop": c.StopSignal, "onbuild": fmt.Sprintf("%q", c.OnBuild), "shell": fmt.Sprintf("%q", c.Shell), "health": health,
	}
}

// flat is contents for an image of go-containerregistry.
func flat(t *testing.T, image v1.Image) map[string]string {
	t.Helper()
	r := mutate.Extract(image)
	defer r.Close()
	list, in := map[string]string{}, tar.NewReader(r)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if h.Typeflag == tar.TypeLink {
			list[name] = list[strings.TrimPrefix(path.Clean("/"+h.Linkname), "/")]
			continue
		}
		text := fmt.Sprintf("%c%o %d:%d", h.Typeflag, h.Mode&0o7777, h.Uid, h.Gid)
		switch {
		case h.Typeflag == tar.TypeSymlink:
			text += " -> " + h.Linkname
		case h.Typeflag == tar.TypeReg && h.Size < 1000:
			var b bytes.Buffer
			if _, err := io.Copy(&b, in); err != nil {
				t.Fatal(err)
			}
			text += " " + b.String()
		}
		list[name] = text
	}
}

// dropSame removes from an image's files those that its base has too, and what each builder makes for programs that run: their own mounts.
func dropSame(files, base map[string]string) {
	for name, text := range base {
		if files[name] == text {
			delete(files, name)
		} else if _, ok := files[name]; !ok {
			files[name] = "removed"
		}
	}
	for _, name := range []string{"", ".", "proc", "sys", "dev", "run", "etc/hosts", "etc/resolv.conf", "etc/hostname", "etc/machine-id", "var/lib/dbus/machine-id"} {
		delete(files, name)
	}
}

package imagebuild

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"agentvm/egress"
	"agentvm/vm"
)

// xzArchive is a tar archive with dir/file, made by xz.
var xzArchive = must(base64.StdEncoding.DecodeString("/Td6WFoAAATm1rRGAgAhARYAAAB0L+Wj4Cf/AF9dADIaSqcleZESjjivSb1cNikk1ae/xxPtI9FYDJ0nos8ilOAVfryaCr2FvnmYSwVvmnZlBt8v3hWvM+42SBVZX9IQM49dbJfOnrYe8RjUt0B/K1slDzmt1SzEfnfANGIAAAAbIJFlW9UC1wABe4BQAAAA75Zb2LHEZ/sCAAAAAARZWg=="))

func TestAddXZ(t *testing.T) {
	o := options(t, "FROM scratch\nADD a.tar.xz /x/\n", map[string]string{"a.tar.xz": string(xzArchive)})
	image, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	wantFiles(t, contents(t, o, image), map[string]string{"x/dir/file": "0640 0:0 abc", "x/a.tar.xz": ""})

	for name, damage := range map[string]func(p []byte){
		"content": func(p []byte) { p[len(p)/2] ^= 1 },
		"a dictionary of 4 GiB": func(p []byte) {
			header := p[12 : 12+4*(int(p[12])+1)]
			header[4] = 40 // of LZMA2's properties (The .xz File Format, 5.3.1)
			binary.LittleEndian.PutUint32(header[len(header)-4:], crc32.ChecksumIEEE(header[:len(header)-4]))
		},
	} {
		damaged := bytes.Clone(xzArchive)
		damage(damaged)
		plain, err := decompress(bytes.NewReader(damaged))
		if err == nil {
			err = readArchive(plain)
		}
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// readArchive reads the files of an archive and what is behind them.
func readArchive(r io.Reader) error {
	for in := tar.NewReader(r); ; {
		if _, err := in.Next(); errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, r)
			return err
		} else if err != nil {
			return err
		}
	}
}

// fileServer is a server on loopback, which connections to 8.8.8.8 reach.
func fileServer(t *testing.T) (port uint16, network vm.Network) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/dir/file.txt":
			w.Header().Set("Last-Modified", "Tue, 14 Nov 2023 22:13:20 GMT")
			fmt.Fprint(w, "fetched")
		case "/":
		case "/a.tar.xz":
			_, _ = w.Write(xzArchive)
		case "/inward":
			http.Redirect(w, r, "http://127.0.0.1:"+r.URL.Query().Get("port")+"/dir/file.txt", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/cut":
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "cut")
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	to := server.Listener.Addr().String()
	dial := func(ctx context.Context, protocol, address string) (net.Conn, error) {
		if host, _, _ := net.SplitHostPort(address); host == "8.8.8.8" {
			address = to
		}
		return new(net.Dialer).DialContext(ctx, protocol, address)
	}
	port = netip.MustParseAddrPort(to).Port()
	return port, vm.Network{Dial: dial, HostPorts: []uint16{port}}
}

func TestAddURL(t *testing.T) {
	port, network := fileServer(t)
	sum := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("fetched")))
	o := options(t, fmt.Sprintf(`FROM scratch
ADD http://8.8.8.8/dir/file.txt /named
ADD --chmod=640 --chown=3:4 http://8.8.8.8/dir/file.txt local /into/
ADD --checksum=%s http://host.agentvm.internal:%d/dir/file.txt /host/
ADD http://files.example.org/a.tar.xz /packed/
ADD --unpack=true http://8.8.8.8/a.tar.xz /unpacked/
`, sum, port), map[string]string{"local": "l"})
	o.VM.Network = network
	o.LookUp = func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("8.8.8.8")}, nil
	}
	image, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	wantFiles(t, contents(t, o, image), map[string]string{
		"named": "0600 0:0 fetched", "into/file.txt": "0640 3:4 fetched", "into/local": "0640 3:4 l", "host/file.txt": "0600 0:0 fetched",
		"packed/a.tar.xz": "0600 0:0 " + string(xzArchive), "unpacked/dir/file": "0640 0:0 abc", "unpacked/a.tar.xz": "",
	})
	var out bytes.Buffer
	o.Output = &out
	if _, err := Build(t.Context(), o); err != nil || strings.Count(out.String(), "CACHED") != 5 {
		t.Errorf("the second build: %v\n%s", err, &out)
	}
}

// TestAddURLRefused has what a policy denies, and servers that answer wrongly.
func TestAddURLRefused(t *testing.T) {
	port, network := fileServer(t)
	denied := network
	denied.Policy.Deny = append(denied.Policy.Deny, must(egress.ParseRule("8.8.8.8")))
	onlyNames := network
	onlyNames.Policy.Allow = append(onlyNames.Policy.Allow, must(egress.ParseRule("files.example.org")))
	for _, c := range []struct {
		network   vm.Network
		add, want string
	}{
		{denied, "http://8.8.8.8/dir/file.txt /x", "denied|deny"},
		{vm.Network{Disabled: true}, "http://8.8.8.8/dir/file.txt /x", "network is disabled"},
		{network, fmt.Sprintf("http://127.0.0.1:%d/dir/file.txt /x", port), "127.0.0.1"},
		{network, "http://host.agentvm.internal:1/x /x", "host.agentvm.internal|denied"},
		{network, fmt.Sprintf("http://8.8.8.8/inward?port=%d /x", port), "127.0.0.1"},
		{network, "http://inward.example.org/x /x", "inward.example.org"}, // has an address of this host
		{onlyNames, "http://other.example.org/x /x", "other.example.org"},
		{network, "http://8.8.8.8/loop /x", "more than 10 redirects"},
		{network, "http://8.8.8.8/missing /x", "404"},
		{network, "http://8.8.8.8/cut /x", "EOF"},
		{network, "http://8.8.8.8/ /x/", "no file name"},
		{network, "--checksum=sha256:" + strings.Repeat("0", 64) + " http://8.8.8.8/dir/file.txt /x", "checksum is wrong"},
		{network, "--checksum=sha256:" + strings.Repeat("0", 64) + " a /x", "checksum"},
		{network, "https://8.8.8.8/dir/file.txt /x", "tls|TLS|HTTPS"},
		{network, "git@github.com:a/b.git /x", "write: RUN git clone git@github.com:a/b.git /x"},
		{network, "https://example.com/a/b.git#v1:sub /x/", "RUN git clone https://example.com/a/b.git /tmp/b && git -C /tmp/b checkout v1 && cp -a /tmp/b/sub /x && rm -r /tmp/b"},
		{network, "--keep-git-dir https://example.com/a.tar /x/", "of a git repository"},
	} {
		o := options(t, "FROM scratch\nADD "+c.add+"\n", map[string]string{"a": "a"})
		o.VM.Network = c.network
		o.LookUp = func(_ context.Context, host string) ([]netip.Addr, error) {
			if host == "other.example.org" {
				t.Error("a name that is denied was looked up")
			}
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		}
		if _, err := Build(t.Context(), o); err == nil || !matches(c.want, err.Error()) {
			t.Errorf("ADD %s: %v, want %s", c.add, err, c.want)
		}
	}
}

// TestAddURLStalls has a server that sends no more.
func TestAddURLStalls(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "beginning")
		w.(http.Flusher).Flush()
		<-release
	}))
	defer server.Close()
	defer close(release)
	port := netip.MustParseAddrPort(server.Listener.Addr().String()).Port()
	o := options(t, fmt.Sprintf("FROM scratch\nADD http://host.agentvm.internal:%d/x /x\n", port), nil)
	o.VM.Network, o.stall = vm.Network{HostPorts: []uint16{port}}, 100*time.Millisecond
	if _, err := Build(t.Context(), o); err == nil || !strings.Contains(err.Error(), "sends nothing") {
		t.Errorf("got %v", err)
	}
}

// TestMountsFromStages has binds and caches that begin with files of stages, and secrets as variables.
func TestMountsFromStages(t *testing.T) {
	o := options(t, `FROM scratch AS files
COPY --chown=5:6 a /dir/a
FROM busybox
RUN mkdir /bound && echo hidden >/bound/hidden
RUN --mount=type=bind,from=files,source=dir,target=/bound cat /bound/a >/one; stat -c %u:%g /bound/a >>/one; ls /bound >>/one; echo x >/bound/lost
RUN --mount=type=bind,from=files,source=/dir/a,target=/etc/one cat /etc/one >/two
RUN --mount=type=cache,from=files,source=dir,target=/cache cat /cache/a >/three; echo changed >/cache/a
RUN --mount=type=cache,from=files,source=dir,target=/cache cat /cache/a >/four
RUN --mount=type=tmpfs,target=/bound,size=1m touch /bound/x && ls /bound >/five && grep -c '^tmpfs /bound tmpfs .*size=1024k' /proc/mounts >/six
RUN --mount=type=secret,id=token,env=TOKEN test "$TOKEN" = secret && ! test -e /run/secrets/token
`, map[string]string{"a": "from stage\n"})
	o.Secrets = map[string][]byte{"token": []byte("secret")}
	var out bytes.Buffer
	o.Output = &out
	image, err := Build(t.Context(), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	wantFiles(t, contents(t, o, image), map[string]string{
		"one": "0644 0:0 from stage\n5:6\na\n", "two": "0644 0:0 from stage\n", "three": "0644 0:0 from stage\n", "four": "0644 0:0 changed\n",
		"five": "0644 0:0 x\n", "bound/x": "", "six": "0644 0:0 1\n",
		"bound/hidden": "0644 0:0 hidden\n", "bound/a": "", "bound/lost": "", "cache/a": "", "run/secrets/token": "",
	})
	for _, c := range []struct{ mount, want string }{
		{"type=bind,from=files,source=none,target=/x", "nothing is there"},
		{"type=bind,from=files,target=/", "below /"},
		{"type=tmpfs,target=/", "below /"},
		{"type=cache,from=files,source=dir/a,target=/x", "no directory"},
	} {
		o := options(t, "FROM scratch AS files\nCOPY a /dir/a\nFROM busybox\nRUN --mount="+c.mount+" true\n", map[string]string{"a": "a"})
		if _, err := Build(t.Context(), o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.mount, err, c.want)
		}
	}
}

// TestOwners has directories that steps make: those of WORKDIR are the user's, the destination of COPY is root's, whatever the source is.
func TestOwners(t *testing.T) {
	o := options(t, `FROM scratch AS files
COPY --chown=5:6 --chmod=700 dir/a /dir/a
WORKDIR /dir/b
FROM scratch
COPY --from=files /dir /copied
COPY --from=files --chown=7:8 /dir /owned
USER 3:4
WORKDIR /work/deep
ADD --chown=1:2 archive.tar /given/
ADD archive.tar /kept/
`, map[string]string{"dir/a": "a", "archive.tar": archiveFile(t)})
	image, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	wantFiles(t, contents(t, o, image), map[string]string{
		"copied": "5755 0:0", "copied/a": "0700 5:6 a", "copied/b": "5755 0:0", "owned": "5755 7:8", "owned/a": "0700 7:8 a", "work": "5755 3:4", "work/deep": "5755 3:4",
		"given/dir/file": "0640 1:2 abc", "kept/dir/file": "0640 7:0 abc",
	})
}

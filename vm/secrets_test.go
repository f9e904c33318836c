package vm_test

import (
	"bytes"
	"crypto/tls"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/images/storetest"
	"agentvm/vm"
)

// secretWorld is a world with a host api.example.com, which gets a secret, and other.example.com at the same address, which gets none.
type secretWorld struct {
	*world
	ca []byte

	mu  sync.Mutex
	got []string // Host and Authorization of the requests
}

func newSecretWorld(t testing.TB) *secretWorld {
	w := &secretWorld{world: newWorld(t)}
	ca, certificate := issue(t, "api.example.com")
	otherCA, other := issue(t, "other.example.com")
	w.ca = append(ca, otherCA...)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		w.got = append(w.got, r.Host+" "+r.Header.Get("Authorization"))
		w.mu.Unlock()
		if r.URL.Path == "/hang" {
			<-r.Context().Done()
			return
		}
		if r.URL.Path == "/download" {
			_, _ = rw.Write(make([]byte, 32<<20))
			return
		}
		rw.Header().Set("X-Echo", r.Header.Get("Authorization"))
		_, _ = io.WriteString(rw, "hello")
	}))
	server.EnableHTTP2 = true
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if hello.ServerName == "other.example.com" {
			return &other, nil
		}
		return &certificate, nil
	}}
	server.StartTLS()
	t.Cleanup(server.Close)
	w.routes["93.184.216.34:443"] = server.Listener.Addr().String()
	return w
}

// config gives a VM the secret KEY, and a directory with the program fetch.
func (w *secretWorld) config(programs string, names map[string]string) func(*vm.Config) {
	return func(c *vm.Config) {
		c.Network = vm.Network{Dial: w.dial, Resolvers: []netip.AddrPort{w.resolver(names)}}
		c.CACertificate = w.ca
		c.Secrets = []vm.Secret{{Name: "KEY", Value: secretValue(), Hosts: []string{"api.example.com"}}}
		c.Mounts = []vm.Mount{{HostPath: programs, GuestPath: "/programs", ReadOnly: true}}
	}
}

// requests returns the requests since the last call.
func (w *secretWorld) requests() (got []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	got, w.got = w.got, nil
	return got
}

// secretValue is put together when it is used, so that this program's file does not have it.
func secretValue() string { return strings.Join([]string{"sk", "live", "9f8e7d6c5b4a"}, "_") }

// buildFetch builds testdata/fetch for guests and returns its directory.
func buildFetch(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	storetest.BuildGuest(t, "./testdata/fetch", filepath.Join(dir, "fetch"))
	return dir
}

func TestSecrets(t *testing.T) {
	w := newSecretWorld(t)
	names := map[string]string{"api.example.com": "93.184.216.34", "other.example.com": "93.184.216.34"}
	config := w.config(buildFetch(t), names)
	disk := filepath.Join(t.TempDir(), "disk")
	if err := vm.CreateDisk(disk, 0); err != nil {
		t.Fatal(err)
	}
	v := ownVM(t, func(c *vm.Config) { config(c); c.Disk = disk })

	wantOutput(t, v, "echo $KEY", "agentvm-secret-KEY\n")
	const request = `/programs/fetch https://api.example.com/ "" "Authorization: Bearer $KEY"`
	wantOutput(t, v, request, "200 Bearer agentvm-secret-KEY hello <nil>\n") // the answer repeats what was sent
	if got, want := w.requests(), "api.example.com Bearer "+secretValue(); len(got) != 1 || got[0] != want {
		t.Errorf("the host got %q, want %q", got, want)
	}
	wantOutput(t, v, strings.ReplaceAll(request, "//api", "//other"), "200 Bearer agentvm-secret-KEY hello <nil>\n")
	if got := w.requests(); len(got) != 1 || got[0] != "other.example.com Bearer agentvm-secret-KEY" {
		t.Errorf("the other host got %q", got)
	}
	wantOutput(t, v, strings.Replace(request, `""`, "other.example.com", 1)+" | head -c 4", "421 ")
	if got := w.requests(); len(got) != 0 {
		t.Errorf("a front end got %q", got)
	}

	t.Run("forks", func(t *testing.T) {
		forks, err := v.Fork(limited(t), 1, vm.ForkOptions{Configure: func(_ int, c *vm.Config) { c.Disk = disk + ".fork" }})
		if err != nil {
			t.Fatal(err)
		}
		defer forks[0].Close()
		wantOutput(t, forks[0], request, "200 Bearer agentvm-secret-KEY hello <nil>\n")
		if got := w.requests(); len(got) != 1 || got[0] != "api.example.com Bearer "+secretValue() {
			t.Errorf("the host got %q from a fork", got)
		}
	})

	t.Run("restored", func(t *testing.T) { // by a process with another authority, into a root that is read-only
		path := filepath.Join(t.TempDir(), "saved.snap")
		var c vm.Config
		readOnly := func(of *vm.Config) { config(of); of.ReadOnlyRoot = true; c = *of }
		own := ownVM(t, readOnly)
		if _, err := own.Snapshot(limited(t), path, vm.SnapshotOptions{}); err != nil {
			t.Fatal(err)
		}
		restored, err := vm.Restore(limited(t), path, c, vm.RestoreOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer restored.Close()
		wantOutput(t, restored, request, "200 Bearer agentvm-secret-KEY hello <nil>\n")
	})

	t.Run("not in the guest", func(t *testing.T) { w.scan(t, v, disk) })

	t.Run("next start", func(t *testing.T) { // another authority takes the place of the first in the bundle
		if err := v.Stop(limited(t)); err != nil {
			t.Fatal(err)
		}
		again := ownVM(t, func(c *vm.Config) { config(c); c.Disk = disk })
		wantOutput(t, again, request, "200 Bearer agentvm-secret-KEY hello <nil>\n")
		wantOutput(t, again, "grep -c '# agentvm: certificates' /etc/ssl/certs/ca-certificates.crt", "1\n")
		if err := again.Stop(limited(t)); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(disk)
		if err != nil || bytes.Contains(text, []byte(secretValue())) {
			t.Errorf("the disk has the secret, or %v", err)
		}
	})
}

// scan saves the VM and looks for the secret in its memory and its disk. The placeholder must be there, or the scan finds nothing at all.
func (w *secretWorld) scan(t *testing.T, v *vm.VM, disk string) {
	path := filepath.Join(t.TempDir(), "saved.snap")
	if _, err := v.Exec(limited(t), "echo $KEY >/root/seen; sync"); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Snapshot(limited(t), path, vm.SnapshotOptions{}); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, file := range []string{path, disk} { // a snapshot has the memory's pages as they are
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, what := range []string{secretValue(), "agentvm-secret-KEY"} {
			found[what] = found[what] || bytes.Contains(text, []byte(what))
		}
	}
	if found[secretValue()] || !found["agentvm-secret-KEY"] {
		t.Errorf("found %v", found)
	}
}

// A VM ends while a request to a host that gets a secret has no answer.
func TestSecretsEnd(t *testing.T) {
	w := newSecretWorld(t)
	v := ownVM(t, w.config(buildFetch(t), map[string]string{"api.example.com": "93.184.216.34"}))
	if _, err := v.Start(limited(t), vm.Command{Line: "/programs/fetch https://api.example.com/hang"}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(2 * time.Minute); len(w.requests()) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the host was not asked")
		}
	}
	closed := make(chan error, 1)
	go func() { closed <- v.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the VM does not end")
	}
}

func TestSecretsAreRefused(t *testing.T) {
	one := vm.Secret{Name: "KEY", Value: "v", Hosts: []string{"api.example.com"}}
	for want, change := range map[string]func(*vm.Config){
		"without a network":    func(c *vm.Config) { c.Network.Disabled = true },
		"two with this name":   func(c *vm.Config) { c.Secrets = append(c.Secrets, one) },
		"without wildcards":    func(c *vm.Config) { c.Secrets[0].Hosts = []string{"*.example.com"} },
		"NOT_SET_1 is not set": func(c *vm.Config) { c.Secrets[0].Value, c.Secrets[0].Source = "", "env:NOT_SET_1" },
		"want env:VARIABLE or": func(c *vm.Config) { c.Secrets[0].Value = "" },
	} {
		c := vm.Config{Secrets: []vm.Secret{one}, StoreDir: kit.store.Dir()}
		change(&c)
		v, err := vm.Start(limited(t), c)
		if err == nil {
			_ = v.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// BenchmarkSecrets compares a guest's downloads and small requests to a host that gets a secret with the same ones to a host that gets none.
func BenchmarkSecrets(b *testing.B) {
	w := newSecretWorld(b)
	names := map[string]string{"api.example.com": "93.184.216.34", "other.example.com": "93.184.216.34"}
	v := ownVM(b, w.config(buildFetch(b), names))
	took := func(host, what string) (took time.Duration) {
		r, err := v.Exec(limited(b), "/programs/fetch "+what+":https://"+host+".example.com/"+what)
		if err == nil {
			took, err = time.ParseDuration(strings.TrimSpace(string(r.Stdout)))
		}
		if err != nil {
			b.Fatalf("%v: %+v", err, r)
		}
		return took
	}
	for _, what := range []string{"download", "requests"} {
		b.Run(what, func(b *testing.B) {
			var ratios, differences []float64
			for b.Loop() {
				other, api := took("other", what), took("api", what)
				ratios = append(ratios, other.Seconds()/api.Seconds())
				differences = append(differences, (api-other).Seconds()*1000/fetchRequests)
			}
			slices.Sort(ratios)
			slices.Sort(differences)
			b.ReportMetric(ratios[len(ratios)/2], "speed-of-plain")
			if what == "requests" {
				b.ReportMetric(differences[len(differences)/2], "ms-more/request")
			}
		})
	}
}

// fetchRequests is how many requests testdata/fetch sends for requests:URL.
const fetchRequests = 100

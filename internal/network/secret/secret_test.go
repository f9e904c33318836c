package secret

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Secret{
		"K=env:V,hosts=api.example.com": {Name: "K", Source: "env:V", Hosts: []string{"api.example.com"}},
		"K=file:/a=b,hosts=a.example,b.example:8443,header=Authorization,X-Api-Key,in=query,in=body,placeholder=sk-0123456789abcdef": {
			Name: "K", Source: "file:/a=b", Hosts: []string{"a.example", "b.example:8443"}, Headers: []string{"Authorization", "X-Api-Key"},
			Query: true, Body: true, Placeholder: "sk-0123456789abcdef",
		},
	} {
		got, err := Parse(text)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got)\n%s", text, err, diff)
		}
		if again, err := Parse(got.String()); err != nil || cmp.Diff(want, again) != "" {
			t.Errorf("%s: %s does not mean the same: %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"K":                                                    "want NAME=env:VARIABLE,hosts=HOST",
		"K=sk-live-1234,hosts=a.example":                       "does not belong on a command line",
		"K=env:V":                                              "name the servers that get it",
		"K=env:,hosts=a.example":                               "want env:VARIABLE or file:PATH",
		"1K=env:V,hosts=a.example":                             "the name of an environment variable",
		"K=env:V,hosts=*.example":                              "without wildcards",
		"K=env:V,hosts=10.0.0.1":                               "want the name of one server",
		"K=env:V,hosts=a.example:0":                            "a port from 1 to 65535",
		"K=env:V,hosts=a.example/path":                         "want the name of one server",
		"K=env:V,hosts=a.example,header=a b":                   "the name of a field",
		"K=env:V,hosts=a.example,in=cookies":                   "want in=query or in=body",
		"K=env:V,hosts=a.example,placeholder=short":            "16 to 512",
		"K=env:V,hosts=a.example,placeholder=0123456789abcde&": "16 to 512",
		"K=env:V,a.example":                                    "want hosts=",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		} else if strings.Contains(err.Error(), "sk-live") {
			t.Errorf("%s: the error shows what was given: %v", text, err)
		}
	}
}

func TestCheckRefusesTwoOfOneName(t *testing.T) {
	one := Secret{Name: "K", Value: "v", Hosts: []string{"a.example"}}
	for _, other := range []Secret{one, {Name: "L", Value: "v", Hosts: one.Hosts, Placeholder: "agentvm-secret-K"}} {
		if err := Check([]Secret{one, other}); err == nil {
			t.Errorf("%+v and %+v were accepted", one, other)
		}
	}
}

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(" sk-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SECRET_TEST", "sk-env\n")
	t.Setenv("SECRET_EMPTY", " ")
	t.Setenv("SECRET_LINES", "a\nb")
	readFile := func(path string, _ int64) ([]byte, error) { return os.ReadFile(path) }
	of := func(source string) []Secret {
		return []Secret{{Name: "K", Source: source, Hosts: []string{"a.example"}}}
	}
	for source, want := range map[string]string{"env:SECRET_TEST": "sk-env", "file:" + path: "sk-file"} {
		list := of(source)
		if got, err := Read(list, readFile); err != nil || got[0].Value != want || list[0].Value != "" {
			t.Errorf("%s: %+v, %v", source, got, err)
		}
	}
	for source, want := range map[string]string{
		"env:SECRET_UNSET_1": "is not set", "env:SECRET_EMPTY": "is empty", "env:SECRET_LINES": "control characters", "file:" + path + "2": "no such file",
	} {
		if _, err := Read(of(source), readFile); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", source, err, want)
		}
	}
}

// A secret that is printed by mistake is not shown.
func TestNotShown(t *testing.T) {
	s := Secret{Name: "K", Value: "sk-live", Hosts: []string{"a.example"}}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(format, s) + fmt.Sprintf(format, []Secret{s}) + fmt.Sprintf(format, &s); strings.Contains(text, "sk-live") {
			t.Errorf("%s: %s", format, text)
		}
	}
}

func TestApply(t *testing.T) {
	list := []Secret{
		{Name: "A", Value: "alpha", Hosts: []string{"h.example"}},
		{Name: "AB", Value: "be ta", Hosts: []string{"H.example."}, Query: true, Body: true},
		{Name: "C", Value: "gamma", Hosts: []string{"h.example"}, Headers: []string{"x-key"}},
		{Name: "D", Value: "delta", Hosts: []string{"other.example", "h.example:8443"}},
	}
	r := replacementsOf(list, host{"h.example", 443})
	const body = "1 agentvm-secret-AB 2 agentvm-secret-A 3"
	out, err := http.NewRequest("POST", "https://h.example/agentvm-secret-AB?q=agentvm-secret-AB&r=agentvm-secret-A;x", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	out.Header = http.Header{
		"Authorization": {"Bearer agentvm-secret-A"}, "X-Key": {"agentvm-secret-C,agentvm-secret-D"}, "X-Other": {"agentvm-secret-C", "agentvm-secret-AB"},
	}
	r.apply(out)
	want := http.Header{"Authorization": {"Bearer alpha"}, "X-Key": {"gamma,agentvm-secret-D"}, "X-Other": {"agentvm-secret-C", "be ta"}}
	if diff := cmp.Diff(want, out.Header); diff != "" {
		t.Errorf("header (-want +got)\n%s", diff)
	}
	if got := out.URL.String(); got != "https://h.example/agentvm-secret-AB?q=be+ta&r=agentvm-secret-A;x" {
		t.Errorf("URL %s", got)
	}
	if got, err := io.ReadAll(out.Body); err != nil || string(got) != "1 be ta 2 agentvm-secret-A 3" || out.ContentLength != -1 {
		t.Errorf("body %q, %v, length %d", got, err, out.ContentLength)
	}
	for value, want := range map[string]string{
		"Basic dXNlcjphZ2VudHZtLXNlY3JldC1B": "Basic dXNlcjphbHBoYQ==", // user:agentvm-secret-A
		"basic dXNlcjphZ2VudHZtLXNlY3JldC1B": "basic dXNlcjphbHBoYQ==",
		"Basic dXNlcjpvdGhlcg==":             "Basic dXNlcjpvdGhlcg==",
		"Basic !":                            "Basic !",
	} {
		if got := r.header("Authorization", value); got != want {
			t.Errorf("%s became %s, want %s", value, got, want)
		}
	}
	answer := http.Header{"X-Echo": {"your key alpha"}}
	if r.hide(answer); answer.Get("X-Echo") != "your key agentvm-secret-A" {
		t.Errorf("the answer has %q", answer.Get("X-Echo"))
	}
}

func TestBodyInPieces(t *testing.T) {
	const old = "agentvm-secret-K"
	text := strings.Repeat("agentvm-secret-", 3000) + old + old + "x" + old[:15] + old + strings.Repeat("agent", 10000) + old[:8]
	want := strings.ReplaceAll(text, old, "V")
	for name, reader := range map[string]io.Reader{
		"whole": strings.NewReader(text), "bytes": iotest.OneByteReader(strings.NewReader(text)), "halves": iotest.HalfReader(strings.NewReader(text)),
		"error with data": iotest.DataErrReader(strings.NewReader(text)),
	} {
		b := &bodyReader{inner: io.NopCloser(reader), old: []byte(old), new: []byte("V")}
		if got, err := io.ReadAll(iotest.HalfReader(b)); err != nil || string(got) != want {
			t.Errorf("%s: %d bytes, %v, want %d", name, len(got), err, len(want))
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("K=env:V,hosts=a.example:8443,header=Authorization,in=query,placeholder=0123456789abcdef")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		if again, err := Parse(s.String()); err != nil || cmp.Diff(s, again) != "" {
			t.Errorf("%q is %q: %v", text, s, err)
		}
	})
}

func FuzzBody(f *testing.F) {
	f.Add([]byte("xaaab"), []byte("aab"), uint8(1))
	f.Fuzz(func(t *testing.T, text, old []byte, piece uint8) {
		if len(old) == 0 {
			return
		}
		b := &bodyReader{inner: io.NopCloser(&inPieces{text, int(piece) + 1}), old: old, new: []byte("-")}
		if got, err := io.ReadAll(b); err != nil || !bytes.Equal(got, bytes.ReplaceAll(text, old, []byte("-"))) {
			t.Errorf("%q, %v", got, err)
		}
	})
}

type inPieces struct {
	text  []byte
	piece int
}

func (r *inPieces) Read(p []byte) (int, error) {
	if len(r.text) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), r.piece)], r.text)
	r.text = r.text[n:]
	return n, nil
}

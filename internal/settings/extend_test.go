package settings

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var learned = Network{Mode: "allowlist", Allow: []string{"a.example:443/tcp", "b.example:80"}, HostPorts: []string{"5432"}}

func TestExtend(t *testing.T) {
	tests := []struct {
		name, text, want string
		add              Network
	}{
		{
			"an empty file", "", "[network]\nmode = \"allowlist\"\nallow = [\n    \"a.example:443/tcp\",\n    \"b.example:80\",\n]\nhost-ports = [5432]\n", learned,
		},
		{
			"no network", "# mine\nimage = \"alpine\" # not this one\n", "# mine\nimage = \"alpine\" # not this one\n\n[network]\nmode = \"none\"\n", Network{Mode: "none"},
		},
		{"no end of the last line", "memory = \"1G\"", "memory = \"1G\"\n\n[network]\nallow = [\"x\"]\n", Network{Allow: []string{"x"}}},
		{
			"an empty table", "[network] # here\n[[sidecar]]\ncommand = \"x\"\n",
			"[network] # here\nmode = \"allowlist\"\nallow = [\"x\"]\n[[sidecar]]\ncommand = \"x\"\n", Network{Mode: "allowlist", Allow: []string{"x"}},
		},
		{
			"one line", "[network]\nallow = [\"x\"] # why\nmode = 'public' # and this\n",
			"[network]\nallow = [\"x\", \"a\", \"b\"] # why\nmode = \"allowlist\" # and this\n", Network{Mode: "allowlist", Allow: []string{"a", "x", "b"}},
		},
		{"one line with a last comma", "[network]\nallow = [\"x\", ]\n", "[network]\nallow = [\"x\", \"a\" ]\n", Network{Allow: []string{"a"}}},
		{"an empty list", "[network]\nallow = []\n", "[network]\nallow = [\"a\"]\n", Network{Allow: []string{"a"}}},
		{
			"several lines with comments", "[network]\nallow = [\n  # the index, a \"#\" and ]\n  \"x\", # x,\n  \"y\" # y [\n  # the end\n]\n",
			"[network]\nallow = [\n  # the index, a \"#\" and ]\n  \"x\", # x,\n  \"y\", # y [\n  \"a\",\n  \"b\",\n  # the end\n]\n", Network{Allow: []string{"a", "b"}},
		},
		{
			"lines that end with CR LF", "[network]\r\nallow = [\r\n\t\"x\",\r\n]\r\n", "[network]\r\nallow = [\r\n\t\"x\",\r\n\t\"a\",\r\n]\r\n", Network{Allow: []string{"a"}},
		},
		{
			"a comma behind a comment", "[network]\nallow = [\"x\" # [,\n,# y,\n]\n", "[network]\nallow = [\"x\" # [,\n,# y,\n    \"a\",\n]\n", Network{Allow: []string{"a"}},
		},
		{"nothing new", "[network] # x\nallow = [\"a\"]\n", "[network] # x\nallow = [\"a\"]\n", Network{Allow: []string{"a"}}},
		{"the other spelling", "[network]\nhost_ports = [1,2]\n", "[network]\nhost_ports = [1,2, 3]\n", Network{HostPorts: []string{"2", "3"}}},
		{"inline, and nothing to do", "network = {mode = \"none\"}\n", "network = {mode = \"none\"}\n", Network{Mode: "none"}},
		{"only a comment", "# nothing\n", "# nothing\n\n[network]\nmode = \"none\"\n", Network{Mode: "none"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := Extend(Name, []byte(test.text), test.add)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, string(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// What cannot be extended is refused with its place, and not guessed at.
func TestExtendRefuses(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"an inline table", "\nnetwork = {mode = \"public\"}\n", Name + ":2:11: network is not a table of its own"},
		{"dotted keys", "network.mode = \"public\"\n", "network is not a table of its own"},
		{"a file that is wrong", "[network]\nmode = 1\n", Name + ":2:8: network.mode is a text"},
		{"no TOML", "[network\n", Name + ":1:"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got, err := Extend(Name, []byte(test.text), learned); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%q, %v; want %q", got, err, test.want)
			}
		})
	}
}

// FuzzExtend: what comes out is a file that has what was added, and every line's comment of before.
func FuzzExtend(f *testing.F) {
	for _, seed := range []string{
		"", "[network]\nallow = [\"x\"] # y\n", "[network]\nallow = [ # a\n \"x\"\n , # b\n]\nmode = '''public'''\n", "[ network ]\nmode=\"none\"", "[network]\n\"allow\" = []",
		"network = {}", "[network]\nhost-ports = [1, 2,\n3]", "[[sidecar]]\ncommand = [\"a\", \"[\"]\n[network]#\r\n", "\ufeff[network]\n", "[network]\nallow=[\"\"\"a\n#\"\"\"]\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		before, err := Parse(Name, []byte(text))
		out, extendErr := Extend(Name, []byte(text), learned)
		if err != nil || extendErr != nil {
			return
		}
		after, err := Parse(Name, out)
		if err != nil {
			t.Fatalf("%q became %q: %v", text, out, err)
		}
		if !after.means(before.with(before.network().with(learned))) {
			t.Fatalf("%q became %q", text, out)
		}
		rest := string(out)
		if mode := before.network().Mode; mode != "" && mode != learned.Mode {
			return // one value was replaced
		}
		for i := range len(text) {
			at := strings.IndexByte(rest, text[i])
			if at < 0 {
				t.Fatalf("%q became %q, which leaves something out", text, out)
			}
			rest = rest[at+1:]
		}
	})
}

package images

import (
	"strings"
	"testing"

	"agentvm/internal/host/platform"
)

func TestParseReleases(t *testing.T) {
	good := newFakeRelease(t).list("3.21.4")
	sum := strings.Repeat("ab", 64)
	item := func(version, file, sum string) string {
		return "-\n  flavor: alpine-minirootfs\n  arch: riscv64\n  version: " + version + "\n  file: " + file + "\n  sha512: " + sum + "\n"
	}
	name := "alpine-minirootfs-3.21.4-riscv64.tar.gz"
	tests := []struct {
		name, text string
		want       string // the version, or part of the error
	}{
		{"as Alpine writes it", good, "3.21.4"},
		{"item on the dash's line", strings.Replace(item("3.21.4", name, sum), "-\n  flavor", "- flavor", 1), "3.21.4"},
		{"other indentation", strings.ReplaceAll(item("3.21.4", name, sum), "\n  ", "\n      "), "3.21.4"},
		{"quoted values", strings.ReplaceAll(item(`"3.21.4"`, "'"+name+"'", sum), "\n", "\r\n"), "3.21.4"},
		{"empty", "", "no alpine-minirootfs"},
		{"only others", strings.ReplaceAll(good, "alpine-minirootfs", "alpine-netboot"), "no alpine-minirootfs"},
		{"another machine", strings.ReplaceAll(good, "riscv64", "x86_64"), "no alpine-minirootfs"},
		{"version that is a path", item("../..", name, sum), "odd version"},
		{"file that is a path", item("3.21.4", "../../etc/x", sum), "odd file"},
		{"file of another version", item("3.21.4", "alpine-minirootfs-3.21.5-riscv64.tar.gz", sum), "odd file"},
		{"short checksum", item("3.21.4", name, sum[1:]), "no SHA-512"},
		{"no checksum", item("3.21.4", name, ""), "no SHA-512"},
		{"page in HTML", "<html>\n<body>- hello: there</body></html>", "no alpine-minirootfs"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			found, err := parseReleases([]byte(test.text), platform.RISCV64)
			got := found.version
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestParseChecksum(t *testing.T) {
	sum, file := strings.Repeat("ab", 64), "alpine-minirootfs-3.21.4-riscv64.tar.gz"
	tests := []struct {
		name, text string
		ok         bool
	}{
		{"with the name", sum + "  " + file + "\n", true},
		{"binary mode", strings.ToUpper(sum) + " *" + file, true},
		{"alone", sum, true},
		{"another file", sum + "  other.tar.gz\n", false},
		{"short", sum[1:] + "  " + file, false},
		{"empty", "", false},
		{"page in HTML", "<html></html>", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseChecksum([]byte(test.text), file)
			if (err == nil) != test.ok || test.ok && got != sum {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// FuzzParseReleases checks that whatever a server sends, only a well-formed release comes out.
func FuzzParseReleases(f *testing.F) {
	f.Add(newFakeRelease(f).list("3.21.4"))
	f.Add("- flavor: alpine-minirootfs\n  arch: riscv64\n  version: 1.2.3\n")
	f.Add("---\n-\n-\n- \n  : \n  a:\n")
	f.Fuzz(func(t *testing.T, text string) {
		found, err := parseReleases([]byte(text), platform.RISCV64)
		if err != nil {
			return
		}
		if !isVersion(found.version, 3) || !isHex(found.sha512, 128) || strings.ContainsAny(found.branch()+found.fileName(), "/\\") {
			t.Errorf("release %+v", found)
		}
	})
}

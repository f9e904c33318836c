package buildid

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
)

// TestRead: the ID is the one that Go's own tool finds.
func TestRead(t *testing.T) {
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "tool", "buildid", path).CombinedOutput()
	if err != nil {
		t.Skipf("go tool buildid: %v\n%s", err, out)
	}
	want := strings.TrimSpace(string(out))
	if got := Read(); got != want || runtime.GOOS == "linux" && got == "" {
		t.Errorf("the build ID is %q, want %q", got, want)
	}
}

func TestFind(t *testing.T) {
	for name, test := range map[string]struct{ program, want string }{
		"text":               {"MZ..\xff Go build ID: \"a/b\"\n \xff...", "a/b"},
		"text without end":   {"\xff Go build ID: \"a/b", ""},
		"note":               {"\x7fELF\x04\x00\x00\x00\x03\x00\x00\x00\x04\x00\x00\x00Go\x00\x00a/bcd", "a/b"},
		"note cut short":     {"\x7fELF\x04\x00\x00\x00\x09\x00\x00\x00\x04\x00\x00\x00Go\x00\x00a/b", ""},
		"note that lies":     {"\x7fELF\x04\x00\x00\x00\xff\xff\xff\xff\x04\x00\x00\x00Go\x00\x00a/b", ""},
		"note of another":    {"\x7fELF\x05\x00\x00\x00\x03\x00\x00\x00\x04\x00\x00\x00Go\x00\x00a/b", ""},
		"note without sizes": {"\x04\x00\x00\x00Go\x00\x00a/b", ""},
		"nothing":            {"", ""},
	} {
		if got := find([]byte(test.program)); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

package fleet

import (
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestSecretFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("its files have no modes")
	}
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte("one 0123456789abcdef0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, private := range map[fs.FileMode]bool{0o600: true, 0o400: true, 0o440: true, 0o640: true, 0o644: false, 0o444: false, 0o660: false, 0o602: false, 0o604: false} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		_, err := ReadSecretFile(path)
		if _, opened := OpenTenants(path, slog.New(slog.DiscardHandler), time.Now); (err == nil) != private || (opened == nil) != private {
			t.Errorf("mode %04o: %v, %v", mode, err, opened)
		}
		if err != nil && !strings.Contains(err.Error(), "chmod") {
			t.Errorf("mode %04o: %v", mode, err)
		}
	}
}

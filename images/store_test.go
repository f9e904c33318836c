package images

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// files lists what a store holds, but its lock files.
func files(t testing.TB, s *Store) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(s.Dir(), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.HasPrefix(path, s.lockDir()) {
			list = append(list, strings.TrimPrefix(path, s.Dir()))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

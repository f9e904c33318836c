package hostfile_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"agentvm/internal/host/hostfile"
)

func TestTimesAndNumbers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Write(make([]byte, 8192)); err != nil {
		t.Fatal(err)
	}
	accessed, modified := time.Unix(1_000_000_000, 123_456_000), time.Unix(1_100_000_000, 654_321_000)
	if err := hostfile.SetTimes(file, accessed, modified); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st := hostfile.Of(info); !st.Accessed.Equal(accessed) || !info.ModTime().Equal(modified) || st.Links != 1 || st.Changed.IsZero() {
		t.Errorf("%+v, modified %v", st, info.ModTime())
	}
	if again, err := file.Stat(); err != nil || hostfile.Of(again).Inode != hostfile.Of(info).Inode {
		t.Errorf("the open file has other numbers than its name: %v", err)
	}
}

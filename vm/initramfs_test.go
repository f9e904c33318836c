package vm

import (
	"bytes"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/u-root/u-root/pkg/cpio"
)

// The archive is read back by another implementation of the format.
func TestInitramfs(t *testing.T) {
	program := []byte("\x7fELF and so on")
	archive := initramfs(program)
	if at := bytes.Index(archive, program); at%8 != 0 {
		t.Errorf("the supervisor's data begins at %d, want a multiple of 8", at)
	}
	records, err := cpio.ReadAllRecords(cpio.Newc.Reader(bytes.NewReader(archive)))
	if err != nil {
		t.Fatal(err)
	}
	type entry struct {
		Name                    string
		Mode, Rmajor, Rminor, N uint64
	}
	var got []entry
	for _, r := range records {
		got = append(got, entry{r.Name, r.Mode, r.Rmajor, r.Rminor, r.FileSize})
	}
	want := []entry{
		{"dev", 0o040755, 0, 0, 0},
		{"dev/console", 0o020600, 5, 1, 0},
		{"dev/null", 0o020666, 1, 3, 0},
		{"init", 0o100755, 0, 0, uint64(len(program))},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	content, err := io.ReadAll(io.NewSectionReader(records[3], 0, int64(len(program))))
	if err != nil || !bytes.Equal(content, program) {
		t.Errorf("init = %q, %v", content, err)
	}
}

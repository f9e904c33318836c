//go:build linux

package guest

import (
	"bytes"
	"io"
	"testing"

	"agentvm/vm"
)

// BenchmarkMachineFiles moves 16 MiB to and from our own machine. It reports the guest's instructions for each byte, and MB/s.
func BenchmarkMachineFiles(b *testing.B) {
	if testing.Short() {
		b.Skip("boots a machine")
	}
	v, err := vm.Start(b.Context(), vm.Config{Image: "busybox"})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = v.Close() }()
	files := v.Files()
	data := bytes.Repeat([]byte("0123456789abcde\n"), 1<<20)
	var archive bytes.Buffer
	for _, bb := range []struct {
		name string
		do   func() error
	}{
		{"write", func() error { return files.WriteFrom(b.Context(), "/root/x", bytes.NewReader(data), 0o644) }},
		{"read", func() error { _, err := files.ReadTo(b.Context(), "/root/x", io.Discard); return err }},
		{"pack", func() error {
			archive.Reset()
			_, err := files.CreateTar(b.Context(), []string{"/root/x"}, &archive)
			return err
		}},
		{"unpack", func() error {
			return files.ExtractTar(b.Context(), "/root/y", bytes.NewReader(archive.Bytes()))
		}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			before := v.Instructions()
			for b.Loop() {
				if err := bb.do(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(v.Instructions()-before)/float64(b.N)/float64(len(data)), "instructions/B")
		})
	}
}

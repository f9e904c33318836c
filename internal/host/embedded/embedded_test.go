package embedded_test

import (
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"agentvm/internal/host/embedded"
)

func TestUnpack(t *testing.T) {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	packed := w.EncodeAll([]byte("contents"), nil)
	if got, err := embedded.Unpack("a file", packed); string(got) != "contents" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for name, damaged := range map[string][]byte{"cut": packed[:len(packed)-1], "changed": append([]byte{1}, packed[1:]...)} {
		if got, err := embedded.Unpack("a file", damaged); err == nil || !strings.HasPrefix(err.Error(), "a file: ") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

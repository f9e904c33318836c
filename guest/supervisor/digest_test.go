package supervisor

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"
)

func TestDigest(t *testing.T) {
	program, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(program)
	if d, err := Digest(); err != nil || d != hex.EncodeToString(sum[:]) {
		t.Errorf("Digest = %s, %v; want %x", d, err, sum)
	}
}

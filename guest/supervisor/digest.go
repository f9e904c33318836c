package supervisor

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"sync"
)

//go:embed manifest.json
var described []byte

// Digest returns the SHA-256 of what Binary returns, in hexadecimal, without decompressing it.
func Digest() (string, error) { return digest() }

var digest = sync.OnceValues(func() (string, error) {
	var m struct {
		SHA256 string `json:"sha256"`
	}
	if err := json.Unmarshal(described, &m); err != nil || m.SHA256 == "" {
		return "", fmt.Errorf("guest supervisor: manifest.json does not say its digest: %w", err)
	}
	return m.SHA256, nil
})

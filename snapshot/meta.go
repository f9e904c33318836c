package snapshot

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// encodeMeta makes the JSON of the meta section: encoding/json's, compact, in the order of the fields of Meta.
func encodeMeta(m Meta) ([]byte, error) {
	m.Created = m.Created.UTC().Round(0)
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode its description: %w", err)
	}
	if len(b) > MaxMeta {
		return nil, fmt.Errorf("its description has %d bytes, more than %d", len(b), MaxMeta)
	}
	return b, nil
}

// decodeMeta reads a meta section and compares it with the header.
func decodeMeta(b []byte, h *header) (Meta, error) {
	var m Meta
	decoder := json.NewDecoder(bytes.NewReader(b))
	decoder.DisallowUnknownFields() // a version of its own would have them
	if err := decoder.Decode(&m); err != nil {
		return Meta{}, fmt.Errorf("%w: its description: %w", ErrCorrupt, err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return Meta{}, fmt.Errorf("%w: something follows its description", ErrCorrupt)
	}
	if m.LinearMemory != h.memory.length {
		return Meta{}, fmt.Errorf("%w: its description has a memory of %d bytes, its header one of %d", ErrCorrupt, m.LinearMemory, h.memory.length)
	}
	var disk int64
	if m.Disk != nil {
		disk = m.Disk.Size
	}
	if disk != h.disk.length || m.Disk != nil && disk == 0 {
		return Meta{}, fmt.Errorf("%w: its description has a disk of %d bytes, its header one of %d", ErrCorrupt, disk, h.disk.length)
	}
	return m, nil
}

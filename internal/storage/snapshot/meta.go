package snapshot

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// encodeMeta returns the JSON of the meta section: compact, in the order of Meta's fields.
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
	decoder.DisallowUnknownFields() // new fields come with a new version
	if err := decoder.Decode(&m); err != nil {
		return Meta{}, fmt.Errorf("%w: its description: %w", ErrCorrupt, err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return Meta{}, fmt.Errorf("%w: something follows its description", ErrCorrupt)
	}
	if m.LinearMemory != h.memorySize {
		return Meta{}, fmt.Errorf("%w: its description has a memory of %d bytes, its header one of %d", ErrCorrupt, m.LinearMemory, h.memorySize)
	}
	var disk int64
	if m.Disk != nil {
		disk = m.Disk.Size
	}
	if m.Disk != nil && m.Disk.Beside != "" {
		if disk <= 0 || disk > MaxDisk || disk%PageSize != 0 || h.diskSize != 0 || !isBeside(m.Disk.Beside) {
			return Meta{}, fmt.Errorf("%w: its description has a disk of %d bytes in %.100q", ErrCorrupt, disk, m.Disk.Beside)
		}
		return m, nil
	}
	if disk != h.diskSize || m.Disk != nil && disk == 0 {
		return Meta{}, fmt.Errorf("%w: its description has a disk of %d bytes, its header one of %d", ErrCorrupt, disk, h.diskSize)
	}
	return m, nil
}

package journal

import (
	"errors"
	"fmt"
	"os"
)

// OpenDamaged opens, for reading, what precedes the damage in a log that Open refuses; the log is not finished. Without damage it has all. The
// error says that nothing can be read.
func OpenDamaged(path string) (*Log, error) {
	l, err := OpenReadOnly(path)
	var corrupt *CorruptError
	if !errors.As(err, &corrupt) {
		return l, err
	}
	file, failed := os.Open(path)
	if failed != nil {
		return nil, fmt.Errorf("open journal: %w", failed)
	}
	info, failed := file.Stat()
	if failed != nil {
		return nil, errors.Join(fmt.Errorf("open journal: %w", failed), file.Close())
	}
	header := make([]byte, fileHeader)
	n, failed := readAt(file, header, 0)
	layout, wrong := decodeLayout(header[:n])
	if failed != nil || wrong != nil {
		return nil, errors.Join(err, failed, file.Close())
	}
	r := &recovery{Log: newLog(path, layout, file), size: info.Size()}
	r.salvage()
	return r.Log, nil
}

// salvage keeps the regions up to the first one that is not whole, and of that one the records before the damage.
func (r *recovery) salvage() {
	if r.readSlots() != nil {
		r.tail, r.gen = nil, 0
	}
	_, err := r.scan(r.head)
	if err != nil || len(r.tail) > 0 && r.head.end.cursor != r.headEnd {
		r.tail, r.gen = nil, 0
	}
	for i, x := range r.tail {
		_, err := r.scan(x)
		if err != nil || i < len(r.tail)-1 && x.end.cursor != r.tail[i+1].first {
			r.tail, r.gen = r.tail[:i+1], x.gen
			return
		}
	}
}

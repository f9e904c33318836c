package daemon

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
)

func TestIdentity(t *testing.T) {
	p := paths{t.TempDir()}
	if _, err := p.readIdentity(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a VM that never ran: %v", err)
	}
	made, err := p.ensureIdentity(&Restoration{Snapshot: "/x"})
	if err != nil || made.check() != nil {
		t.Fatalf("%+v, %v", made, err)
	}
	saved := Identity{ID: strings.Repeat("0f", 16), PreviewPort: 7}
	if again, err := p.ensureIdentity(&Restoration{Identity: &saved}); err != nil || again != made {
		t.Errorf("it has one: %+v, %v, want %+v", again, err, made)
	}
	other := paths{t.TempDir()}
	if got, err := other.ensureIdentity(&Restoration{Identity: &saved}); err != nil || got != saved {
		t.Errorf("one that takes another's place: %+v, %v", got, err)
	}
	for _, bad := range []string{"", "{", `{"id":""}`, `{"id":"xy"}`, `{"id":"` + strings.Repeat("0f", 17) + `"}`, `{"id":"` + strings.Repeat("0f", 16) + `","previewPort":70000}`} {
		if err := os.WriteFile(other.identity(), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := other.ensureIdentity(nil); err == nil {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

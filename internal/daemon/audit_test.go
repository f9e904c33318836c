package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentvm/egress"
)

func TestAuditLog(t *testing.T) {
	dir := t.TempDir()
	kept, wanted := filepath.Join(dir, "network.log"), filepath.Join(dir, "wanted")
	if err := os.WriteFile(wanted, []byte("earlier\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var logged bytes.Buffer
	a, err := openAudit(kept, wanted, appendTo, slog.New(slog.NewTextHandler(&logged, nil)))
	if err != nil {
		t.Fatal(err)
	}
	a.write(egress.StartEvent(time.Now(), egress.Policy{}))
	big := egress.Event{Kind: egress.KindDNS, Message: strings.Repeat("<", 1000)}
	for range maxAudit/1000 + 100 {
		a.write(big)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	a.write(big) // an event after Close is no panic
	a.write(big)
	if n := strings.Count(logged.String(), "not complete"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, &logged)
	}
	all, err := os.ReadFile(wanted)
	if err != nil || !bytes.HasPrefix(all, []byte("earlier\n{")) || len(all) < maxAudit {
		t.Errorf("%d bytes, %v", len(all), err)
	}
	for _, path := range []string{kept, kept + ".1"} {
		b, err := os.ReadFile(path)
		if err != nil || len(b) > maxAudit+2000 {
			t.Errorf("%s: %d bytes, %v", path, len(b), err)
		}
		for line := range bytes.Lines(b) {
			var e egress.Event
			if err := json.Unmarshal(line, &e); err != nil {
				t.Fatalf("%s: %v: %.100s", path, err, line)
			}
		}
	}
}

func TestAuditLogThatCannotBe(t *testing.T) {
	dir := t.TempDir()
	if _, err := openAudit(filepath.Join(dir, "a"), filepath.Join(dir, "no", "such"), appendTo, slog.Default()); err == nil || !strings.Contains(err.Error(), "network log") {
		t.Error(err)
	}
	if _, err := openAudit(filepath.Join(dir, "no", "such"), "", appendTo, slog.Default()); err == nil {
		t.Error("opened")
	}
	var none *auditLog
	if err := errors.Join(none.Close(), (&machineFiles{}).Close()); err != nil {
		t.Error(err)
	}
}

func appendTo(path string, _ int) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
}

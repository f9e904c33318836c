package daemon

import (
	"bytes"
	"strings"
	"testing"
)

// TestDaemonLogIsBounded has a guest change its health again and again, as a health check of an image can: what was logged before stays in the log.
func TestDaemonLogIsBounded(t *testing.T) {
	var log bytes.Buffer
	logger := newLogger(&log, false)
	logger.Info("daemon listens", "name", "dev")
	for range 10_000 {
		for _, state := range []string{healthHealthy, healthUnhealthy} {
			logger.Info("the image's health check", "state", state)
		}
	}
	logger.Info("daemon ends")
	text := log.String()
	if lines := strings.Count(text, "\n"); lines > 100 || !strings.Contains(text, "daemon listens") || !strings.Contains(text, "daemon ends") {
		t.Errorf("%d lines: %.300s", lines, text)
	}
}

package ticket_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"testing"
	"time"

	"agentvm/internal/api/pod/ticket"
)

func TestTicket(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	_, stranger, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	good := ticket.Make(private, "a", now)
	flipped, _ := base64.RawURLEncoding.DecodeString(good)
	flipped[len(flipped)-1] ^= 1 // its end
	for name, c := range map[string]struct {
		pod, text string
		at        time.Time
		valid     bool
	}{
		"good":             {"a", good, now, true},
		"a slower clock":   {"a", good, now.Add(-30 * time.Second), true},
		"another pod":      {"b", good, now, false},
		"too late":         {"a", good, now.Add(ticket.Life + 2*time.Minute), false},
		"of the future":    {"a", ticket.Make(private, "a", now.Add(time.Hour)), now, false},
		"another key":      {"a", ticket.Make(stranger, "a", now), now, false},
		"a changed end":    {"a", base64.RawURLEncoding.EncodeToString(flipped), now, false},
		"nothing":          {"a", "", now, false},
		"no base64":        {"a", "*", now, false},
		"a part":           {"a", good[:40], now, false},
		"something behind": {"a", good + "AAAA", now, false},
	} {
		if err := ticket.Check(public, c.pod, c.text, c.at); (err == nil) != c.valid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

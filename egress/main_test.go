package egress

import (
	"testing"

	"agentvm/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// rules parses or fails the test.
func rules(t testing.TB, texts ...string) []Rule {
	t.Helper()
	var list []Rule
	for _, text := range texts {
		r, err := ParseRule(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	return list
}

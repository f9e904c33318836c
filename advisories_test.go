package agentvm_test

import (
	"cmp"
	"encoding/json"
	"go/version"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// leastGo is the oldest Go whose os.Root has no published way out.
const leastGo = "go1.26.5"

// TestAdvisories keeps what agentvm is built with at or above the versions in which flaws that concern the boundary were fixed.
func TestAdvisories(t *testing.T) {
	mod := read(t, "go.mod")
	match := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(mod)
	if match == nil {
		t.Fatal("go.mod names no version of Go")
	}
	modules := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\t(\S+) (v\S+)`).FindAllStringSubmatch(mod, -1) {
		modules[m[1]] = m[2]
	}
	var supervisor struct{ Go string }
	if err := json.Unmarshal([]byte(read(t, filepath.Join("internal", "guest", "supervisor", "manifest.json"))), &supervisor); err != nil {
		t.Fatal(err)
	}
	for what, got := range map[string]string{"go.mod": "go" + match[1], "the supervisor's manifest": supervisor.Go} {
		if !version.IsValid(got) || version.Compare(got, leastGo) < 0 {
			t.Errorf("%s has %s, want at least %s: see docs/security/advisories.md", what, got, leastGo)
		}
	}
	rows := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (\\S+) \\|").FindAllStringSubmatch(read(t, filepath.Join("docs", "security", "advisories.md")), -1)
	highest := ""
	for _, row := range rows {
		if row[1] == "go" {
			if v := "go" + row[2]; version.Compare(v, highest) > 0 {
				highest = v
			}
			continue
		}
		if got := modules[row[1]]; got == "" || compareVersions(got, row[2]) < 0 {
			t.Errorf("go.mod has %s %q, want at least %s: see docs/security/advisories.md", row[1], got, row[2])
		}
	}
	if highest != leastGo {
		t.Errorf("docs/security/advisories.md wants %q, and this test %s", highest, leastGo)
	}
}

// compareVersions compares vMAJOR.MINOR.PATCH by number.
func compareVersions(a, b string) int {
	x, y := strings.Split(strings.TrimPrefix(a, "v"), "."), strings.Split(strings.TrimPrefix(b, "v"), ".")
	for i := range 3 {
		m, _ := strconv.Atoi(x[i])
		n, _ := strconv.Atoi(y[i])
		if m != n {
			return cmp.Compare(m, n)
		}
	}
	return 0
}

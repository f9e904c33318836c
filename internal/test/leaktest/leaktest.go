// Package leaktest finds goroutines that tests have left behind. Goroutines that end by themselves get more time than with
// goleak, which is half a second in all and too little on a busy host. It is for tests only.
package leaktest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// maxWait bounds how long goroutines may take to end. Only tests that fail wait so long.
const maxWait = 20 * time.Second

// Main runs the tests of a package, whose TestMain it is, and fails when goroutines are left of them.
func Main(m *testing.M) {
	os.Exit(Check(m.Run()))
}

// Check turns the exit code of tests that have passed into 1 when goroutines are left of them, which it lists.
func Check(code int) int {
	if code != 0 {
		return code
	}
	if err := find(maxWait); err != nil {
		fmt.Fprintln(os.Stderr, "goroutines are left after all tests:", err)
		return 1
	}
	return 0
}

// None fails a test when goroutines are left of it; goleak.IgnoreCurrent, made at its beginning, excepts those of others.
func None(tb testing.TB, options ...goleak.Option) {
	tb.Helper()
	if err := find(maxWait, options...); err != nil {
		tb.Error(err)
	}
}

func find(maxWait time.Duration, options ...goleak.Option) error {
	for end := time.Now().Add(maxWait); ; {
		err := goleak.Find(options...)
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

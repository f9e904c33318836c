package errno

import (
	"runtime"
	"syscall"
	"testing"
)

// TestNames: there and back again is the same number, and where the host is Linux its numbers are those of the table.
func TestNames(t *testing.T) {
	for number, host := range hosts {
		if got := Of(host); got != number {
			t.Errorf("%v is %v", host, got)
		}
		if runtime.GOOS == "linux" && int32(host) != int32(number) {
			t.Errorf("%v is %d here and %d in the table", host, int(host), number)
		}
	}
	if got := Errno(4711).Host(); got != 0 {
		t.Errorf("an unknown number is %v", got)
	}
	if got := Errno(4711).Error(); got != "errno 4711" {
		t.Error(got)
	}
}

// TestNumbersWithoutAName: what a guest must not take for another error has no number.
func TestNumbersWithoutAName(t *testing.T) {
	if runtime.GOOS == "linux" {
		t.Skip("the host's numbers are Linux's")
	}
	if got := Of(syscall.Errno(0x1fffffff)); got != 0 {
		t.Error(got)
	}
}

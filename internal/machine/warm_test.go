package machine_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/machine"
	"agentvm/wasi"
)

func TestExpectRefuses(t *testing.T) {
	w := workAt(t, 60e6)
	image := w.capture()
	for _, test := range []struct {
		name string
		list []machine.Range
	}{
		{"half a page", []machine.Range{{At: 0, Length: 2048}}},
		{"nothing", []machine.Range{{At: 4096, Length: 0}}},
		{"before the memory", []machine.Range{{At: -4096, Length: 4096}}},
		{"behind it", []machine.Range{{At: image.Size(), Length: 4096}}},
		{"beyond its end", []machine.Range{{At: image.Size() - 4096, Length: 8192}}},
		{"a length that wraps", []machine.Range{{At: 4096, Length: 1<<63 - 4096}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := image.Expect(test.list); err == nil {
				t.Error("accepted")
			}
		})
	}
	if err := image.Expect([]machine.Range{{At: image.Size() - 4096, Length: 4096}}); err != nil {
		t.Error(err)
	}
}

// A machine whose image expects all that another one has written does what that one did, and can be closed at once.
func TestExpectedPagesChangeNothing(t *testing.T) {
	original := workAt(t, 60e6)
	image := original.capture()
	original.advance(2e6)
	written, err := original.Written()
	if err != nil || len(written) == 0 {
		t.Fatalf("%d ranges written, %v", len(written), err)
	}
	if err := image.Expect(written); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		cfg := lockstep
		cfg.Console = wasi.NewStream(64 << 10)
		m, err := testProgram(t).Restore(t.Context(), cfg, image)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	again := restoreWorker(t, lockstep, image)
	again.advance(2e6)
	if diff := cmp.Diff(original.hash(), again.hash()); diff != "" {
		t.Error("the machine that was given its pages differs from the other one")
	}
}

// What an image would ignore is not listed: a base that keeps the list is read at each start.
func TestTooMuchWrittenIsNotListed(t *testing.T) {
	w := workAt(t, 60e6)
	w.capture()
	if err := w.WriteRAM(8<<20, make([]byte, 5<<20)); err != nil {
		t.Fatal(err)
	}
	if list, err := w.Written(); err != nil || len(list) != 0 {
		t.Errorf("%d ranges, %v", len(list), err)
	}
}

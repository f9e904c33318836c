package wasi

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// A ring of any capacity is a queue, also while it grows with bytes in it that go around its end.
func TestRingIsAQueue(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, capacity := range []int{0, 1, 2, 7, smallRing - 1, smallRing, smallRing + 1, 3 * smallRing, 100_000} {
		r := newRing(capacity)
		var want []byte
		next := byte(0)
		for range 2000 {
			given := make([]byte, random.IntN(capacity+2)>>random.IntN(8))
			for i := range given {
				given[i] = next
				next++
			}
			n := r.write(given)
			if most := max(capacity, 1) - len(want); n != min(len(given), most) {
				t.Fatalf("capacity %d: wrote %d of %d bytes with room for %d", capacity, n, len(given), most)
			}
			want = append(want, given[:n]...)
			next -= byte(len(given) - n)
			got := make([]byte, random.IntN(capacity+2)>>random.IntN(4))
			got = got[:r.read(got)]
			if !bytes.Equal(got, want[:len(got)]) {
				t.Fatalf("capacity %d: other bytes came out than went in", capacity)
			}
			if want = want[len(got):]; r.size() != len(want) || r.room() != max(capacity, 1)-len(want) {
				t.Fatalf("capacity %d: it has %d bytes and room for %d, want %d", capacity, r.size(), r.room(), len(want))
			}
		}
		if len(r.buf) > max(capacity, 1) {
			t.Errorf("capacity %d: it takes %d bytes", capacity, len(r.buf))
		}
	}
}

func TestRingTakesNoMemoryInAdvance(t *testing.T) {
	r := newRing(1 << 20)
	if len(r.buf) != 0 {
		t.Errorf("an empty ring takes %d bytes", len(r.buf))
	}
	for range 1000 {
		r.write(make([]byte, 3000))
		r.read(make([]byte, 3000))
	}
	if len(r.buf) != smallRing {
		t.Errorf("a ring that never held more than 3000 bytes takes %d bytes", len(r.buf))
	}
}

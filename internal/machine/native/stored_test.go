package native_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/machine/native"
	"agentvm/internal/machine/native/blocks"
)

var seen = bytes.Repeat([]byte{0xA5}, blocks.PageSize/16)

// TestStored: a block that was stored is the same afterwards, and what has another form is none.
func TestStored(t *testing.T) {
	made, _ := page(1)
	if len(made.Code) == 0 {
		t.Skip("there is no native code on this system")
	}
	b := native.Encode(made, seen)
	again, seenAgain, ok := native.Decode(b)
	if !ok || !bytes.Equal(seenAgain, seen) {
		t.Fatalf("decoded: %t, %x", ok, seenAgain)
	}
	if diff := cmp.Diff(made, again); diff != "" {
		t.Error(diff)
	}
	for n := range len(b) - len(made.Code) + 1 {
		if _, _, ok := native.Decode(b[:n]); ok {
			t.Errorf("the first %d bytes are accepted", n)
		}
	}
	for name, change := range map[string]func(b []byte){
		"more instructions than a page has": func(b []byte) { b[3] = 1 },
		"no entry":                          func(b []byte) { copy(b[4:], "\x00\x00\x00\x00") },
		"more entries than there are":       func(b []byte) { b[5] = 1 },
		"entries without end":               func(b []byte) { copy(b[4:], "\xff\xff\xff\xff") },
		"an entry between two halfwords":    func(b []byte) { b[8]++ },
		"an entry outside the page":         func(b []byte) { b[9] = 0x10 },
		"an entry outside the code":         func(b []byte) { b[13] = 0xff },
	} {
		bad := bytes.Clone(b)
		change(bad)
		if _, _, ok := native.Decode(bad); ok {
			t.Errorf("%s: accepted", name)
		}
	}
	two := made
	two.Entries = []blocks.Entry{{Offset: 4, At: 0}, {Offset: 2, At: 0}}
	if _, _, ok := native.Decode(native.Encode(two, seen)); ok {
		t.Error("entries in the wrong order are accepted")
	}
}

// TestDigest: keys that differ in anything have different names.
func TestDigest(t *testing.T) {
	_, key := page(1)
	same := key
	if key.Digest() != same.Digest() {
		t.Error("equal keys have different names")
	}
	for name, change := range map[string]func(k *native.Key){
		"contents":    func(k *native.Key) { k.Sum[31]++ },
		"second half": func(k *native.Key) { k.Second++ },
		"layout":      func(k *native.Key) { k.Layout.Walk.MaxNoted++ },
		"processor":   func(k *native.Key) { k.Layout.Host.Fused = !k.Layout.Host.Fused },
	} {
		other := key
		change(&other)
		if key.Digest() == other.Digest() {
			t.Errorf("keys with different %s have the same name", name)
		}
	}
}

// FuzzDecode: whatever is decoded has the right form and is what was given.
func FuzzDecode(f *testing.F) {
	made := blocks.Translation{Code: []byte{0x90, 0xc3}, Entries: []blocks.Entry{{Offset: 2, At: 0}, {Offset: 8, At: 1}}, Instructions: 3}
	f.Add(native.Encode(made, seen))
	f.Fuzz(func(t *testing.T, b []byte) {
		made, seen, ok := native.Decode(b)
		if !ok {
			return
		}
		if again := native.Encode(made, seen); !bytes.Equal(again, b) {
			t.Errorf("%x becomes %x", b, again)
		}
		for _, e := range made.Entries {
			if e.At >= len(made.Code) || e.Offset >= blocks.PageSize {
				t.Errorf("entry %v is outside", e)
			}
		}
	})
}

package preview

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/test/testclock"
)

func openKey(t testing.TB, path string, now func() time.Time) *Key {
	t.Helper()
	k, err := OpenKey(path, nil, now)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func someToken() Token {
	return Token{Identity: IdentityOf("dev", "1"), Port: 3000, Expires: time.Unix(1_800_000_000, 0).UTC(), Nonce: [8]byte{1, 2, 3, 4, 5, 6, 7, 8}}
}

func sign(t testing.TB, k *Key, token Token) string {
	t.Helper()
	text, err := k.Sign(token)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestToken(t *testing.T) {
	k := openKey(t, filepath.Join(t.TempDir(), "key"), nil)
	text := sign(t, k, someToken())
	if len(text) != 63 || strings.Trim(text, "0123456789abcdefghijklmnopqrstuv") != "" {
		t.Errorf("%q is no label of a name in lower case", text)
	}
	got, err := k.Verify(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(someToken(), got); diff != "" {
		t.Errorf("token (-want +got):\n%s", diff)
	}
}

// TestTokenChanged changes each bit of a token's bytes, and each character in all ways.
func TestTokenChanged(t *testing.T) {
	k := openKey(t, filepath.Join(t.TempDir(), "key"), nil)
	text := sign(t, k, someToken())
	raw, err := labelEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	for bit := range 8 * len(raw) {
		raw[bit/8] ^= 1 << (bit % 8)
		if _, err := k.Verify(labelEncoding.EncodeToString(raw)); !errors.Is(err, ErrForged) {
			t.Fatalf("bit %d changed: %v", bit, err)
		}
		raw[bit/8] ^= 1 << (bit % 8)
	}
	for at := range text {
		for c := range 256 {
			changed := text[:at] + string([]byte{byte(c)}) + text[at+1:]
			if _, err := k.Verify(changed); changed != text && !errors.Is(err, ErrForged) {
				t.Fatalf("character %d is %q: %v", at, byte(c), err)
			}
		}
	}
}

func TestTokenRefused(t *testing.T) {
	k := openKey(t, filepath.Join(t.TempDir(), "key"), nil)
	other := openKey(t, filepath.Join(t.TempDir(), "key"), nil)
	text := sign(t, k, someToken())
	for _, c := range []struct{ name, text string }{
		{"empty", ""},
		{"a word", "favicon"},
		{"cut", text[:62]},
		{"longer", text + "0"},
		{"in capitals", strings.ToUpper(text)},
		{"with a line break", text[:30] + "\n" + text[31:]},
		{"with a line break more", text[:30] + "\n" + text[30:]},
		{"padded", text[:62] + "="},
		{"bits behind the end", text[:62] + string("0123456789abcdefghijklmnopqrstuv"[strings.IndexByte("0123456789abcdefghijklmnopqrstuv", text[62])|1])},
		{"of another key", sign(t, other, someToken())},
		{"zeros", strings.Repeat("0", 63)},
		{"very long", strings.Repeat("0", 1<<20)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := k.Verify(c.text); !errors.Is(err, ErrForged) {
				t.Errorf("%v, want ErrForged", err)
			}
		})
	}
}

func TestIdentity(t *testing.T) {
	seen := make(map[[8]byte]string)
	for _, pair := range [][2]string{{"a", "b"}, {"ab", ""}, {"", "ab"}, {"a", "c"}, {"b", "a"}, {"a\x00", "b"}, {"a", "\x00b"}} {
		id := IdentityOf(pair[0], pair[1])
		if before := seen[id]; before != "" {
			t.Errorf("%q and %s are one", pair, before)
		}
		seen[id] = strings.Join(pair[:], "+")
	}
}

func TestKeyIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	text := sign(t, openKey(t, path, nil), someToken())
	if _, err := openKey(t, path, nil).Verify(text); err != nil {
		t.Error(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if !isPrivate(info) {
		t.Errorf("the key's mode is %v", info.Mode())
	}
	if files, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(files) != 0 {
		t.Errorf("left behind: %v", files)
	}
}

// TestKeyRotates has two processes, of which one rotates.
func TestKeyRotates(t *testing.T) {
	clock := testclock.New()
	path := filepath.Join(t.TempDir(), "key")
	a, b := openKey(t, path, clock.Now), openKey(t, path, clock.Now)
	before := sign(t, a, someToken())
	if err := a.Rotate(clock.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	after := sign(t, b, someToken())
	if before == after {
		t.Error("the other process signs with the old key")
	}
	for _, text := range []string{before, after} {
		for name, k := range map[string]*Key{"a": a, "b": b, "c": openKey(t, path, clock.Now)} {
			if _, err := k.Verify(text); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	clock.Advance(time.Hour)
	if _, err := b.Verify(before); !errors.Is(err, ErrForged) {
		t.Errorf("a token of the key that has ended: %v", err)
	}
	if err := a.Rotate(clock.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if keys, _, err := readKeys(path); err != nil || len(keys) != 2 {
		t.Errorf("%d keys are kept, %v; want the new and the last", len(keys), err)
	}
}

func TestKeyRotatesTooOften(t *testing.T) {
	clock := testclock.New()
	k := openKey(t, filepath.Join(t.TempDir(), "key"), clock.Now)
	text := sign(t, k, someToken())
	var err error
	for range 2 * maxKeys {
		if err = k.Rotate(clock.Now().Add(time.Hour)); err != nil {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "wait until") {
		t.Errorf("error %v", err)
	}
	if _, err := k.Verify(text); err != nil {
		t.Errorf("the first token: %v", err)
	}
}

func TestKeyRefused(t *testing.T) {
	good := strings.Repeat("ab", keyBytes)
	for _, c := range []struct {
		name, text string
		mode       os.FileMode
		want       string
	}{
		{"others can read it", keyHeader + "\n" + good + "\n", 0o644, "can be read by others"},
		{"empty", "", 0o600, "is no key"},
		{"no key", keyHeader + "\n", 0o600, "has no key"},
		{"short", keyHeader + "\n" + good[2:] + "\n", 0o600, "line 2"},
		{"not hexadecimal", keyHeader + "\n" + good[1:] + "x\n", 0o600, "not hexadecimal"},
		{"first replaced", keyHeader + "\n" + good + " 5\n", 0o600, "line 2"},
		{"second not replaced", keyHeader + "\n" + good + "\n" + good + "\n", 0o600, "line 3"},
		{"no time", keyHeader + "\n" + good + "\n" + good + " -5\n", 0o600, "not a time"},
		{"too many", keyHeader + "\n" + good + "\n" + strings.Repeat(good+" 5\n", maxKeys), 0o600, "more than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "key")
			if err := os.WriteFile(path, []byte(c.text), c.mode); err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(path); err != nil || c.mode != 0o600 && isPrivate(info) {
				t.Skip("files have no such modes here")
			}
			_, err := OpenKey(path, nil, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), good[:20]) {
				t.Errorf("the error tells the key: %v", err)
			}
		})
	}
}

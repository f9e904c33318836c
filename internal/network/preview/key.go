package preview

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/private"
)

// keyHeader is the first line of a key file. The others are keys, the newest first: 64 hexadecimal digits, and for those
// that were replaced the time in Unix seconds until which they verify.
const keyHeader = "agentvm preview keys 1"

const (
	keyBytes = 32
	maxKeys  = 16 // one file's; each costs an HMAC when a forged token comes
)

// A Key signs tokens and verifies them. It is a file that only its owner can read, and that several processes may use:
// what one of them rotates the others see at their next token.
type Key struct {
	path   string
	random io.Reader
	now    func() time.Time

	mu   sync.Mutex
	keys []signingKey // newest first, never empty
	file fs.FileInfo  // what keys were read from
}

type signingKey struct {
	secret [keyBytes]byte
	until  int64 // Unix seconds; 0 for the newest
}

// OpenKey reads the key in the file path, or makes one of 32 bytes of random (nil: crypto/rand). A file that others than its owner can
// read is refused. now may be nil for time.Now.
func OpenKey(path string, random io.Reader, now func() time.Time) (*Key, error) {
	k := &Key{path: path, random: random, now: now}
	if k.random == nil {
		k.random = rand.Reader
	}
	if k.now == nil {
		k.now = time.Now
	}
	if err := k.create(); err != nil {
		return nil, fmt.Errorf("make the key of previews %s: %w", path, err)
	}
	if _, err := k.current(); err != nil {
		return nil, err
	}
	return k, nil
}

// create makes the file unless there is one; of several processes that do, one wins.
func (k *Key) create() error {
	if _, err := os.Lstat(k.path); err == nil {
		return nil
	}
	fresh, err := k.fresh()
	if err != nil {
		return err
	}
	f, err := atomicfile.Create(k.path)
	if err != nil {
		return err
	}
	defer f.Discard()
	_, err = f.Write(formatKeys([]signingKey{fresh}))
	if err == nil {
		err = f.CommitNew()
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

func (k *Key) fresh() (key signingKey, err error) {
	_, err = io.ReadFull(k.random, key.secret[:])
	return key, err
}

// Rotate makes a new key, which signs from now on. The one before verifies until then.
// Two processes must not rotate at once; Store.Rotate sees to it.
func (k *Key) Rotate(until time.Time) error {
	keys, err := k.current()
	if err != nil {
		return err
	}
	fresh, err := k.fresh()
	if err != nil {
		return fmt.Errorf("rotate the key of previews: %w", err)
	}
	next := []signingKey{fresh}
	for i, old := range keys {
		if i == 0 {
			old.until = max(until.Unix(), 1)
		}
		if old.until > k.now().Unix() {
			next = append(next, old)
		}
	}
	if len(next) > maxKeys {
		return fmt.Errorf("rotate the key of previews %s: %d older ones still have tokens; wait until those have expired", k.path, len(next)-1)
	}
	if err := atomicfile.Write(k.path, formatKeys(next)); err != nil {
		return fmt.Errorf("rotate the key of previews: %w", err)
	}
	return nil
}

// Sign returns the token's text: 63 characters, fit for a URL and for a DNS label.
func (k *Key) Sign(t Token) (string, error) {
	keys, err := k.current()
	if err != nil {
		return "", err
	}
	body := t.body()
	return labelEncoding.EncodeToString(append(body, keys[0].tag(body)...)), nil
}

// Verify returns what a token says if one of the keys signed it, and ErrForged otherwise. Whether its time is over is not its question.
func (k *Key) Verify(text string) (Token, error) {
	t, body, tag, err := parseToken(text)
	if err != nil {
		return Token{}, err
	}
	keys, err := k.current()
	if err != nil {
		return Token{}, err
	}
	for _, key := range keys {
		if (key.until == 0 || k.now().Unix() < key.until) && hmac.Equal(tag, key.tag(body)) {
			return t, nil
		}
	}
	return Token{}, fmt.Errorf("%w: its signature is wrong", ErrForged)
}

func (s *signingKey) tag(body []byte) []byte {
	mac := hmac.New(sha256.New, s.secret[:])
	mac.Write([]byte("agentvm preview token\x00"))
	mac.Write(body)
	return mac.Sum(nil)[:tagBytes]
}

// current returns the keys of the file, which is read again when it is another one.
func (k *Key) current() ([]signingKey, error) {
	file, err := os.Stat(k.path)
	if err != nil {
		return nil, fmt.Errorf("read the key of previews: %w", err)
	}
	k.mu.Lock()
	keys, known := k.keys, k.file
	k.mu.Unlock()
	if known != nil && os.SameFile(known, file) && known.ModTime().Equal(file.ModTime()) && known.Size() == file.Size() {
		return keys, nil
	}
	keys, file, err = readKeys(k.path)
	if err != nil {
		return nil, fmt.Errorf("read the key of previews: %w", err)
	}
	k.mu.Lock()
	k.keys, k.file = keys, file
	k.mu.Unlock()
	return keys, nil
}

func readKeys(path string) ([]signingKey, fs.FileInfo, error) {
	text, info, err := private.ReadSecret(path, 1<<14)
	if err != nil {
		return nil, nil, err
	}
	keys, err := parseKeys(text)
	if err != nil {
		return nil, nil, fmt.Errorf("%s is no key of previews (%w); remove it, which ends all previews", path, err)
	}
	return keys, info, nil
}

func parseKeys(text []byte) (keys []signingKey, err error) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	if !lines.Scan() || lines.Text() != keyHeader {
		return nil, fmt.Errorf("its first line is not %q", keyHeader)
	}
	for lines.Scan() {
		key, err := parseKey(lines.Text(), len(keys) == 0)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", len(keys)+2, err)
		}
		if keys = append(keys, key); len(keys) > maxKeys {
			return nil, fmt.Errorf("more than %d keys", maxKeys)
		}
	}
	if lines.Err() != nil || len(keys) == 0 {
		return nil, errors.New("it has no key")
	}
	return keys, nil
}

func parseKey(line string, newest bool) (key signingKey, err error) {
	digits, until, replaced := strings.Cut(line, " ")
	if len(digits) != 2*keyBytes || replaced == newest {
		return key, errors.New("not of the form of a key")
	}
	if _, err := hex.Decode(key.secret[:], []byte(digits)); err != nil {
		return key, errors.New("not hexadecimal") // the error would quote the key
	}
	if replaced {
		if key.until, err = strconv.ParseInt(until, 10, 64); err != nil || key.until <= 0 {
			return key, errors.New("not a time")
		}
	}
	return key, nil
}

// formatKeys is the file's content.
func formatKeys(keys []signingKey) []byte {
	var text bytes.Buffer
	text.WriteString(keyHeader + "\n")
	for _, key := range keys {
		text.WriteString(hex.EncodeToString(key.secret[:]))
		if key.until != 0 {
			fmt.Fprintf(&text, " %d", key.until)
		}
		text.WriteString("\n")
	}
	return text.Bytes()
}

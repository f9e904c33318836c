package preview

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	_ "github.com/ncruces/go-sqlite3/driver" // "sqlite3"

	"agentvm/internal/host/private"
)

// Lifetimes of previews, and how many a VM may have.
const (
	DefaultLifetime = time.Hour
	MaxLifetime     = 24 * time.Hour
	MaxPerVM        = 128
)

// maxRevoked is how many revoked previews of a VM are remembered as such; of older ones Check says that it does not know them.
const maxRevoked = 1024

// Options are those of a Store. The zero value is good.
type Options struct {
	// KeyPath is the file of the key. Default: preview.key beside the store.
	KeyPath string
	// MaxLifetime caps what Create is asked for (preview.maxExpiresInSeconds). Default: 24 hours.
	MaxLifetime time.Duration
	// Now is the clock. Default: time.Now.
	Now func() time.Time
	// Random is where keys and nonces come from. Default: crypto/rand.
	Random io.Reader
}

// A Store keeps previews. Several Stores, of one process or many, may have the same file open.
type Store struct {
	path    string
	options Options
	key     *Key

	// Two connections: SQLite tells a connection only what others have changed, and Check must hear of everything.
	writes, reads *sql.DB
	version       *sql.Stmt // of reads

	reload chan struct{} // holds a token while index is being made
	mu     sync.RWMutex
	index  *index        // nil before the first Check
	change chan struct{} // closed by the next write of this Store; nil after Close
}

// OpenStore opens the SQLite file path (mode 0600), and makes it, its key and its directory when they are missing.
func OpenStore(path string, o Options) (*Store, error) {
	o = o.withDefaults(path)
	s := &Store{path: path, options: o, reload: make(chan struct{}, 1), change: make(chan struct{})}
	if err := s.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("open previews %s: %w", path, err), s.closeFiles())
	}
	return s, nil
}

func (o Options) withDefaults(path string) Options {
	if o.KeyPath == "" {
		o.KeyPath = filepath.Join(filepath.Dir(path), "preview.key")
	}
	if o.MaxLifetime <= 0 {
		o.MaxLifetime = MaxLifetime
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Random == nil {
		o.Random = rand.Reader
	}
	return o
}

func (s *Store) open() (err error) {
	if err := prepareFile(s.path); err != nil {
		return err
	}
	dsn, err := dataSource(s.path)
	if err != nil {
		return err
	}
	for _, db := range []**sql.DB{&s.writes, &s.reads} {
		if *db, err = sql.Open("sqlite3", dsn); err != nil {
			return err
		}
		(*db).SetMaxOpenConns(1)
	}
	if err := s.prepareSchema(); err != nil {
		return fmt.Errorf("%w; remove the file, which ends all previews, if it is damaged", err)
	}
	if err := s.keepPrivate(); err != nil {
		return err
	}
	if s.version, err = s.reads.Prepare("PRAGMA data_version"); err != nil {
		return err
	}
	s.key, err = OpenKey(s.options.KeyPath, s.options.Random, s.options.Now)
	return err
}

// prepareFile makes the file so that SQLite need not, which would give it the mode of the umask.
func prepareFile(path string) error {
	if err := private.MakeFolder(filepath.Dir(path)); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if runtime.GOOS != "windows" {
		err = f.Chmod(0o600)
	}
	if err == nil {
		err = private.CheckFile(f)
	}
	return errors.Join(err, f.Close())
}

// keepPrivate gives the files that SQLite has put beside the file, in the user's own folder, its mode instead of the umask's. They stay until the last
// connection of any process closes.
func (s *Store) keepPrivate() error {
	if runtime.GOOS == "windows" {
		return nil
	}
	path, err := filepath.EvalSymlinks(s.path) // as SQLite does
	if err != nil {
		return err
	}
	return errors.Join(setMode(path+"-wal"), setMode(path+"-shm"))
}

// setMode opens the file, as a daemon that is confined may change the mode of no other. SQLite's locks do not go with it: they are of open files.
func setMode(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o600), f.Close())
}

// dataSource names a file to the driver. Commits wait for the disk: after a power cut a revoked preview must not be back.
func dataSource(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	path = filepath.ToSlash(path)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // C:/...
	}
	query := url.Values{
		"_txlock": {"immediate"},
		"_pragma": {"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(FULL)", "trusted_schema(0)"},
	}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: query.Encode()}).String(), nil
}

// The application ID is in the file's header and tells that it is one of ours.
const (
	applicationID = 0x61767076 // "avpv"
	schemaVersion = 1
	schema        = `
CREATE TABLE preview (
	nonce   BLOB PRIMARY KEY CHECK (length(nonce) = 8),
	vm      TEXT NOT NULL,
	vm_id   TEXT NOT NULL,
	port    INTEGER NOT NULL CHECK (port BETWEEN 1 AND 65535),
	created INTEGER NOT NULL, -- Unix seconds, as all times
	expires INTEGER NOT NULL,
	revoked INTEGER NOT NULL DEFAULT 0 -- when, or 0
) STRICT, WITHOUT ROWID;
CREATE INDEX preview_vm ON preview (vm);`
)

// prepareSchema makes an empty file ours, and refuses one of another program or a later version.
func (s *Store) prepareSchema() error {
	return s.transact(context.Background(), func(tx *sql.Tx) error {
		var application, version, tables int
		err := errors.Join(
			tx.QueryRow("PRAGMA application_id").Scan(&application),
			tx.QueryRow("PRAGMA user_version").Scan(&version),
			tx.QueryRow("SELECT count(*) FROM sqlite_schema").Scan(&tables),
		)
		switch {
		case err != nil:
			return err
		case application == applicationID && version == schemaVersion:
			return nil
		case application == applicationID && version > schemaVersion:
			return fmt.Errorf("it was made by a later version (schema %d): use that version of agentvm", version)
		case application != 0 || version != 0 || tables != 0:
			return errors.New("it is a database of something else")
		}
		_, err = tx.Exec(schema + fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d;", applicationID, schemaVersion))
		return err
	})
}

// transact runs f in a transaction that excludes other writers, of other processes too.
func (s *Store) transact(ctx context.Context, f func(tx *sql.Tx) error) error {
	tx, err := s.writes.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// change runs f as transact does, and then wakes those who wait for changes.
func (s *Store) write(ctx context.Context, what string, f func(tx *sql.Tx) error) error {
	if s.changes() == nil {
		return ErrClosed
	}
	if err := s.transact(ctx, f); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.change != nil {
		close(s.change)
		s.change = make(chan struct{})
	}
	return nil
}

// changes returns a channel that is closed at the next write through this Store; nil when it is closed.
func (s *Store) changes() <-chan struct{} {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.change
}

// Close closes the file. What is being asked meanwhile fails.
func (s *Store) Close() error {
	s.mu.Lock()
	closed := s.change == nil
	if !closed {
		close(s.change)
		s.change = nil
	}
	s.mu.Unlock()
	if closed {
		return nil
	}
	return s.closeFiles()
}

func (s *Store) closeFiles() (err error) {
	if s.version != nil {
		err = s.version.Close()
	}
	for _, db := range []*sql.DB{s.reads, s.writes} {
		if db != nil {
			err = errors.Join(err, db.Close())
		}
	}
	return err
}

// Why a token gives nothing. Check wraps them; compare by errors.Is.
var (
	// ErrForged is about text that is not a token, one that was changed, or one signed by another key.
	ErrForged = errors.New("the preview's token is not genuine")
	// ErrExpired is about a genuine token whose time is over.
	ErrExpired = errors.New("the preview has expired; make a new one")
	// ErrRevoked is about a genuine token that was taken back.
	ErrRevoked = errors.New("the preview was revoked")
	// ErrUnknown is about a genuine token, or an ID, that is not in the store.
	ErrUnknown = errors.New("no such preview")
)

// ErrLimit is what Create returns when a VM has as many active previews as it may.
var ErrLimit = errors.New("too many previews")

// ErrClosed is what a closed Store or Server returns.
var ErrClosed = errors.New("preview: closed")

// ErrNotRunning is for Dialer and ServerConfig.Permit to return, wrapped or not, when the VM of a preview does not exist or is paused. The
// visitor's page says so.
var ErrNotRunning = errors.New("the VM is not running")

// ErrOtherVM is for ServerConfig.Permit to return when the VM of a preview's name is another one than the one that was shared.
var ErrOtherVM = errors.New("the VM is another one than the one that was shared")

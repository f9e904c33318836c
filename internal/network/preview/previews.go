package preview

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// A Preview is a link to a port of a VM.
type Preview struct {
	// ID is for people and for Revoke. It gives no access.
	ID string
	// VM is the VM's name, VMID tells it from others that had the name before.
	VM, VMID string
	// Port is the guest's TCP port.
	Port uint16
	// Created and Expires are in whole seconds; at Expires the preview is over.
	Created, Expires time.Time
	// Token is the secret part of the link.
	Token string
}

// maxNames bounds the bytes of a VM's name and ID together.
const maxNames = 1024

// Create makes a preview of a port of the VM with that name and ID. A lifetime of 0 is DefaultLifetime; one beyond
// Options.MaxLifetime is cut to it, so look at Expires. ErrLimit when the VM has MaxPerVM active ones.
func (s *Store) Create(ctx context.Context, vm, vmID string, port uint16, lifetime time.Duration) (Preview, error) {
	row, err := s.newRow(vm, vmID, port, lifetime)
	if err != nil {
		return Preview{}, fmt.Errorf("create a preview of %q: %w", vm, err)
	}
	var p Preview
	err = s.write(ctx, fmt.Sprintf("create a preview of %q", vm), func(tx *sql.Tx) error {
		if _, err := s.collect(tx); err != nil {
			return err
		}
		var active int
		if err := tx.QueryRow("SELECT count(*) FROM preview WHERE vm = ? AND vm_id = ? AND revoked = 0", vm, vmID).Scan(&active); err != nil {
			return err
		}
		if active >= MaxPerVM {
			return fmt.Errorf("%w: %d are active; revoke some, or wait until they expire", ErrLimit, active)
		}
		_, err := tx.Exec("INSERT INTO preview (nonce, vm, vm_id, port, created, expires) VALUES (?, ?, ?, ?, ?, ?)",
			row.nonce[:], row.vm, row.vmID, row.port, row.created, row.expires)
		if err != nil {
			return err
		}
		// Signed in the transaction: Rotate has one too, so the key is not replaced in between.
		p, err = s.signed(row)
		return err
	})
	if err != nil {
		return Preview{}, err
	}
	return p, nil
}

func (s *Store) newRow(vm, vmID string, port uint16, lifetime time.Duration) (r row, err error) {
	switch {
	case vm == "" || len(vm)+len(vmID) > maxNames:
		return r, fmt.Errorf("the VM's name and ID have %d bytes; they may have 1 to %d", len(vm)+len(vmID), maxNames)
	case port == 0:
		return r, errors.New("port 0 is no port; say which port of the VM")
	case lifetime < 0:
		return r, fmt.Errorf("it cannot expire %v ago", -lifetime)
	case lifetime == 0:
		lifetime = DefaultLifetime
	}
	lifetime = max(min(lifetime, s.options.MaxLifetime), time.Second)
	now := s.options.Now().Truncate(time.Second)
	end := now.Add(lifetime.Truncate(time.Second))
	if now.Unix() < 0 || end.After(latest()) {
		return r, fmt.Errorf("the clock says %v, which tokens cannot express", now)
	}
	r = row{vm: vm, vmID: vmID, port: port, created: now.Unix(), expires: end.Unix()}
	if _, err := io.ReadFull(s.options.Random, r.nonce[:]); err != nil {
		return r, err
	}
	return r, nil
}

// A row is a preview as it is stored. Times are Unix seconds.
type row struct {
	nonce                     [8]byte
	vm, vmID                  string
	port                      uint16
	created, expires, revoked int64
}

const rowColumns = "nonce, vm, vm_id, port, created, expires, revoked"

func (r *row) scan(rows *sql.Rows) error {
	var nonce []byte
	if err := rows.Scan(&nonce, &r.vm, &r.vmID, &r.port, &r.created, &r.expires, &r.revoked); err != nil {
		return err
	}
	copy(r.nonce[:], nonce)
	return nil
}

func (r *row) token() Token {
	return Token{Identity: IdentityOf(r.vm, r.vmID), Port: r.port, Expires: time.Unix(r.expires, 0).UTC(), Nonce: r.nonce}
}

// preview is what the row says; text is its token.
func (r *row) preview(text string) Preview {
	t := r.token()
	return Preview{ID: t.ID(), VM: r.vm, VMID: r.vmID, Port: r.port, Created: time.Unix(r.created, 0).UTC(), Expires: t.Expires, Token: text}
}

func (s *Store) signed(r row) (Preview, error) {
	text, err := s.key.Sign(r.token())
	return r.preview(text), err
}

// List returns the active previews of a VM, or of all when vm is "", the oldest first.
func (s *Store) List(ctx context.Context, vm string) (list []Preview, err error) {
	if s.changes() == nil {
		return nil, ErrClosed
	}
	rows, err := s.writes.QueryContext(ctx, "SELECT "+rowColumns+` FROM preview
		WHERE (vm = ?1 OR ?1 = '') AND revoked = 0 AND expires > ?2 ORDER BY created, nonce`, vm, s.options.Now().Unix())
	if err != nil {
		return nil, fmt.Errorf("list previews: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var r row
		if err := r.scan(rows); err != nil {
			return nil, fmt.Errorf("list previews: %w", err)
		}
		p, err := s.signed(r)
		if err != nil {
			return nil, fmt.Errorf("list previews: %w", err)
		}
		list = append(list, p)
	}
	return list, rows.Err()
}

// Revoke ends a preview, named by its ID or its token, at once: no Check that begins after Revoke has returned succeeds, and servers of this Store
// end its streams. Doing it again is not an error; ErrUnknown when there is none.
func (s *Store) Revoke(ctx context.Context, id string) error {
	nonce, err := s.nonceOf(id)
	if err != nil {
		return fmt.Errorf("revoke a preview: %w", err)
	}
	return s.write(ctx, "revoke preview "+Token{Nonce: nonce}.ID(), func(tx *sql.Tx) error {
		if n, err := revoke(tx, s.options.Now(), "nonce = ?2", nonce[:]); n != 0 || err != nil {
			return err
		}
		var known int
		if err := tx.QueryRow("SELECT count(*) FROM preview WHERE nonce = ?", nonce[:]).Scan(&known); err != nil || known != 0 {
			return err
		}
		return ErrUnknown
	})
}

// nonceOf reads an ID or a token.
func (s *Store) nonceOf(id string) (nonce [8]byte, err error) {
	if len(id) == TokenLength {
		t, err := s.key.Verify(id)
		return t.Nonce, err
	}
	b, err := labelEncoding.DecodeString(id)
	if err != nil || len(b) != len(nonce) {
		return nonce, fmt.Errorf("%w: %.80q is neither an ID nor a token", ErrUnknown, id)
	}
	return [8]byte(b), nil
}

// RevokeAll ends the previews of a VM, as Revoke does, and returns how many there were. It is for a VM that is removed.
func (s *Store) RevokeAll(ctx context.Context, vm string) (n int, err error) {
	err = s.write(ctx, fmt.Sprintf("revoke the previews of %q", vm), func(tx *sql.Tx) error {
		n, err = revoke(tx, s.options.Now(), "vm = ?2", vm)
		return err
	})
	return n, err
}

// revoke marks the active previews for which the condition on ?2 holds, and forgets those that were revoked long ago.
func revoke(tx *sql.Tx, now time.Time, condition string, value any) (int, error) {
	at := max(now.Unix(), 1)
	result, err := tx.Exec("UPDATE preview SET revoked = ?1 WHERE revoked = 0 AND expires > ?1 AND "+condition, at, value)
	if err != nil {
		return 0, err
	}
	n, err := result.RowsAffected()
	if err != nil || n == 0 {
		return 0, err
	}
	_, err = tx.Exec(`DELETE FROM preview WHERE nonce IN (SELECT nonce FROM
		(SELECT nonce, row_number() OVER (PARTITION BY vm ORDER BY revoked DESC, nonce) AS age FROM preview WHERE revoked != 0)
		WHERE age > ?)`, maxRevoked)
	return int(n), err
}

// Collect removes what has expired and returns how much it was. Create does so too.
func (s *Store) Collect(ctx context.Context) (n int, err error) {
	err = s.write(ctx, "remove expired previews", func(tx *sql.Tx) error {
		n, err = s.collect(tx)
		return err
	})
	return n, err
}

func (s *Store) collect(tx *sql.Tx) (int, error) {
	result, err := tx.Exec("DELETE FROM preview WHERE expires <= ?", s.options.Now().Unix())
	if err != nil {
		return 0, err
	}
	n, err := result.RowsAffected()
	return int(n), err
}

// Rotate makes a new key, which signs from now on, in all processes. Links that were handed out work on until their time is over.
func (s *Store) Rotate(ctx context.Context) error {
	return s.write(ctx, "rotate the key of previews", func(tx *sql.Tx) error {
		var last sql.NullInt64
		if err := tx.QueryRow("SELECT max(expires) FROM preview").Scan(&last); err != nil {
			return err
		}
		return s.key.Rotate(time.Unix(last.Int64, 0))
	})
}

// Domain is under which the names of previews are: browsers resolve all of it to loopback (RFC 6761 section 6.3).
const Domain = "localhost"

// URL returns the link by name, for a server that listens on port of loopback. Each preview is an origin of its own, so
// this is the form to hand out.
func (p Preview) URL(port uint16) string {
	return "http://" + authority(p.Token+"."+Domain, port) + "/"
}

// PathURL returns the link by path, for clients that cannot resolve names below localhost. All previews share its
// origin: see doc.go.
func (p Preview) PathURL(port uint16) string {
	return "http://" + authority("127.0.0.1", port) + pathPrefix + p.Token + "/"
}

const pathPrefix = "/p/"

// authority leaves the port of plain HTTP out, as browsers do.
func authority(host string, port uint16) string {
	if port == 80 {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

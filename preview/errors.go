package preview

import "errors"

// Why a token gives nothing. Check wraps them; compare by errors.Is.
var (
	// ErrForged is about text that is no token, one that was changed, or one signed by another key.
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

// ErrNotRunning is for Dialer and ServerConfig.Permit to return, wrapped or not, when the VM of a preview is not there, stands still, or is
// another one of the same name. The visitor is told so.
var ErrNotRunning = errors.New("the VM is not running")

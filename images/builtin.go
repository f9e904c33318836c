package images

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
)

// BuiltinName is the image that needs no network: BusyBox, statically linked, and the few files around it.
const BuiltinName = "busybox"

// Made by images/busybox/build.sh from the package that busybox/provenance.json names.
//
//go:embed busybox/root.tar.gz
var builtinRoot []byte

func (s *Store) addBuiltin(ctx context.Context, progress ProgressFunc) (*Image, error) {
	return s.addArchive(ctx, Image{Name: BuiltinName, Ref: "builtin"}, bytes.NewReader(builtinRoot), progress)
}

// stale says whether image is the built-in one of another version of this program.
func stale(image *Image) bool {
	if image.Name != BuiltinName {
		return false
	}
	sum := sha256.Sum256(builtinRoot)
	return image.SourceDigest != "sha256:"+hex.EncodeToString(sum[:])
}

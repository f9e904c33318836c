package machine

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"

	"github.com/tetratelabs/wazero"

	"agentvm/internal/machine/wasmbin"
)

// wazero reads and validates all functions of a module before it asks the cache for its code, which takes longer than to load that. So it is
// given a hollow module first (wasmbin.Hollow), whose file in the cache has the code of the whole one:
//
//	hollow module ─► the file of its name ─┬─ is there: the program
//	                                       └─ is not: the whole module is compiled, into the file of that name

// hollow is what codeFiles know while a hollow module, and then the whole one, is compiled.
type hollow struct {
	asked, found bool
	name         [sha256.Size]byte // of the file
}

// errNotKept ends wazero's compilation of a hollow module whose code is not there.
var errNotKept = errors.New("there is no compiled code of the module")

// get is codeFiles' Get.
func (h *hollow) get(c *codeFiles, name [sha256.Size]byte) (content io.ReadCloser, found bool, err error) {
	if h.asked {
		return nil, false, nil // for the whole module
	}
	h.asked, h.name = true, name
	content, h.found, err = c.get(name)
	if err == nil && !h.found {
		err = errNotKept
	}
	return content, h.found, err
}

// compile compiles a module that wazero accepts, or takes its code from the cache; files is nil when there is none.
func compile(ctx context.Context, runtime wazero.Runtime, module []byte, files *codeFiles) (wazero.CompiledModule, error) {
	if files == nil {
		return runtime.CompileModule(ctx, module)
	}
	empty, err := wasmbin.Hollow(module)
	if err != nil {
		return nil, err
	}
	h := &hollow{}
	files.hollow = h
	defer func() { files.hollow = nil }()
	compiled, err := runtime.CompileModule(ctx, empty)
	if err == nil && h.found {
		return compiled, nil
	}
	if err == nil { // its functions were compiled, or are interpreted
		if err := compiled.Close(ctx); err != nil {
			return nil, err
		}
	}
	if !h.asked { // wazero interprets modules here, and has no use for a cache
		files.hollow = nil
	}
	return runtime.CompileModule(ctx, module)
}

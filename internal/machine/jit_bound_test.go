package machine

import (
	"context"
	"encoding/binary"
	"log/slog"
	"testing"

	"github.com/tetratelabs/wazero"

	"agentvm/internal/machine/jit"
)

// What is never put into a machine is bounded, too: code that cannot be translated, and translations that came when their page
// had changed.
func TestUnusedTranslationsAreBounded(t *testing.T) {
	const limit = 32 << 10
	ctx := context.Background()
	runtime := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter())
	defer runtime.Close(ctx)
	translator, err := newTranslator(ctx, runtime, ProgramConfig{Translation: TranslateHot, CodeBytes: limit})
	if err != nil {
		t.Fatal(err)
	}
	defer translator.close()
	layout := &jit.Layout{
		F: 256, PC: 512, Budget: 520, MStatus: 584, FRM: 576, FFlags: 580, Reservation: 800, Reserved: 808, Write: 4096, Code: 8192,
		Entries: 256, EntrySize: 16, Addend: 8, SlotSize: 8, OpTranslated: 99, Version: jit.Version,
	}
	receiver := &machineJIT{m: &Machine{config: Config{Logger: slog.New(slog.DiscardHandler)}}}
	for _, test := range []struct {
		name   string
		code   func(i uint32) []uint32
		region bool
		count  uint32
	}{
		{"code that cannot be translated", func(i uint32) []uint32 { return []uint32{0, i} }, false, 1000},
		{"translations that no machine takes", func(i uint32) []uint32 { return []uint32{i<<20 | 0x00008093, 0xffdff06f} }, true, 50}, // addi x1, x1, i; j .-4
	} {
		t.Run(test.name, func(t *testing.T) {
			for i := range test.count {
				page := make([]byte, jit.PageSize)
				for at, word := range test.code(i) {
					binary.LittleEndian.PutUint32(page[4*at:], word)
				}
				translated := jit.Request{Pages: []jit.Page{{Code: page, Entries: []uint16{0}}}}
				made := translator.translate(&job{layout: layout, request: &request{request: translated}, key: translationKey(layout, translated), to: receiver})
				if (made.compiled != nil) != test.region {
					t.Fatalf("code %d: a region is %t", i, made.compiled != nil)
				}
				made.release()
			}
			if bytes, known := translator.bytes.Load(), len(translator.known); bytes > 2*limit || known > 2*limit/256 || known != len(translator.order) {
				t.Errorf("%d translations are kept, of %d bytes, want at most %d bytes", known, bytes, limit)
			}
		})
	}
}

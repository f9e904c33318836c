package script

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/rogpeppe/go-internal/testscript"

	"agentvm/images/imagestest"
	"agentvm/internal/host/platform"
)

// dockerImage writes an archive of docker save of the built-in root, with a file more and another hidden: dockerimage FILE NAME [WORKDIR].
func dockerImage(ts *testscript.TestScript, _ bool, args []string) {
	layer := ts.MkAbs("layer.tar")
	f, err := os.Create(layer)
	ts.Check(err)
	w := tar.NewWriter(f)
	const program = "#!/bin/sh\necho \"$@\" $GREETING $(id -un) $(pwd)\n"
	for _, h := range []tar.Header{
		{Name: "app/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "app/run", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(program))},
		{Name: "bin/.wh.mktemp", Typeflag: tar.TypeReg},
	} {
		ts.Check(w.WriteHeader(&h))
		if h.Size > 0 {
			_, err := io.WriteString(w, program)
			ts.Check(err)
		}
	}
	ts.Check(errors.Join(w.Close(), f.Close()))
	config := v1.Config{
		Entrypoint: []string{"/app/run", "hello"}, Cmd: []string{"world"}, Env: []string{"PATH=/bin:/sbin", "GREETING=from"}, WorkingDir: append(args, "/app")[2], User: "1000",
		ExposedPorts: map[string]struct{}{"80/tcp": {}}, StopSignal: "SIGUSR1", Volumes: map[string]struct{}{"/var/data": {}},
		Healthcheck: &v1.HealthConfig{Test: []string{"CMD-SHELL", "test -e /tmp/well"}, Interval: time.Second, Retries: 2},
	}
	ts.Check(imagestest.WriteDockerArchive(ts.MkAbs(args[0]), args[1], config, imagestest.BuiltinArchive(platform.RISCV64), layer))
}

// wasmFile writes a WASI program that exits with a code, traps, or prints its arguments: wasm FILE CODE|trap|args.
func wasmFile(ts *testscript.TestScript, _ bool, args []string) {
	imports, body := wasmImport("proc_exit", 0), ""
	switch args[1] {
	case "trap":
		body = "\x00" // unreachable
	case "args":
		imports = wasmImport("args_sizes_get", 2) + wasmImport("args_get", 2) + wasmImport("fd_write", 3)
		body = "\x41\x00\x41\x0c\x10\x00\x1a" + // args_sizes_get(0, 12): the length of a vector at 8
			"\x41\x10\x41\x80\x08\x10\x01\x1a" + // args_get(16, 1024)
			"\x41\x08\x41\x80\x08\x36\x02\x00" + // its pointer, 1024
			"\x41\x01\x41\x08\x41\x01\x41\x00\x10\x02\x1a" // fd_write(1, 8, 1, 0)
	default:
		code, err := strconv.ParseInt(args[1], 0, 32)
		ts.Check(err)
		bits := func(shift int) byte { return byte(code>>shift)&0x7f | 0x80 }
		body = "\x41" + string([]byte{bits(0), bits(7), bits(14), bits(21), byte(code>>28) & 0x7f}) + "\x10\x00"
	}
	count := strings.Count(imports, "wasi_")
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte("\x00asm\x01\x00\x00\x00"+
		wasmSection(1, 4, "\x60\x01\x7f\x00\x60\x00\x00\x60\x02\x7f\x7f\x01\x7f\x60\x04\x7f\x7f\x7f\x7f\x01\x7f")+
		wasmSection(2, count, imports)+
		wasmSection(3, 1, "\x01")+wasmSection(5, 1, "\x00\x01")+ // one function, one page of memory
		wasmSection(7, 2, "\x06memory\x02\x00\x06_start\x00"+string(rune(count)))+
		wasmSection(10, 1, string(rune(len(body)+2))+"\x00"+body+"\x0b")), 0o600))
}

// wasmImport imports a function of preview 1; its type is a number in wasmFile's first section.
func wasmImport(name string, typ byte) string {
	return "\x16wasi_snapshot_preview1" + string(rune(len(name))) + name + "\x00" + string(rune(typ))
}

// wasmSection encodes a section of less than 128 bytes.
func wasmSection(id, count int, items string) string {
	return string(rune(id)) + string(rune(len(items)+1)) + string(rune(count)) + items
}

// elfFile writes a bare program that reports a failure's code to the finisher, 0 for none, or with -1 does nothing for
// ever: elf FILE CODE.
func elfFile(ts *testscript.TestScript, _ bool, args []string) {
	code, err := strconv.Atoi(args[1])
	ts.Check(err)
	upper, lower := uint32(5), uint32(0x555) // 0x5555: passed
	if code != 0 {
		upper, lower = uint32(code)<<4|3, 0x333 // code<<16 | 0x3333
	}
	program := []uint32{
		0x001002b7,            // lui t0, 0x100
		upper<<12 | 0x337,     // lui t1, upper
		lower<<20 | 0x0030313, // addi t1, t1, lower
		0x0062a023,            // sw t1, 0(t0)
		0x0000006f,            // j .
	}
	if code < 0 {
		program = program[len(program)-1:]
	}
	const base, headers = 0x8000_0000, 64 + 56
	size := uint64(4 * len(program))
	var file bytes.Buffer
	file.WriteString("\x7fELF\x02\x01\x01" + string(make([]byte, 9)))
	for _, field := range []any{
		// the file's header: executable, RISC-V, version, entry, program headers, section headers, flags, sizes
		uint16(2), uint16(243), uint32(1), uint64(base), uint64(64), uint64(0), uint32(0),
		uint16(64), uint16(56), uint16(1), uint16(64), uint16(0), uint16(0),
		// its segment: to load, readable and executable, offset, addresses, sizes, alignment
		uint32(1), uint32(5), uint64(headers), uint64(base), uint64(base), size, size, uint64(4),
		program,
	} {
		ts.Check(binary.Write(&file, binary.LittleEndian, field))
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), file.Bytes(), 0o600))
}

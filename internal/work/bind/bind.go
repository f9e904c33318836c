// Package bind gives a guest commands that functions of the host execute. The guest's side of a call is the program in program/client.c, which
// the host puts into the guest under each command's name.
package bind

import (
	"archive/tar"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"agentvm/internal/host/platform"
)

const (
	// SocketPath is where the programs in the guest reach the host.
	SocketPath = Dir + "/bind.sock"
	// Dir has what the host puts into the guest; Folder below it has the commands, and List describes them.
	Dir    = "/run/agentvm"
	Folder = "bin"
	List   = "tools"

	// DefaultTimeout is the default of Command.Timeout.
	DefaultTimeout = 10 * time.Minute

	maxCommands    = 64
	maxDescription = 4 << 10  // bytes
	maxSchema      = 64 << 10 // bytes
)

// The clients are built by program/build.sh: ELF files without a C library.
var (
	//go:embed program/client-riscv64
	clientRISCV64 []byte
	//go:embed program/client-arm64
	clientARM64 []byte
)

var clients = map[platform.Architecture][]byte{platform.RISCV64: clientRISCV64, platform.ARM64: clientARM64}

// Command is a command in the guest's PATH that the host executes. Whatever user and program of the guest may call it: Run must
// treat its Call as what an adversary sends.
type Command struct {
	// Name is 1 to 64 letters, digits, dots, underscores and dashes. It wins over a command of the image with the same name.
	Name string `json:"name"`
	// Description says in a line or more what the command does.
	Description string `json:"description,omitempty"`
	// Schema is a JSON schema of the arguments, an object, which --help and the list in the guest show. Calls are not checked against
	// it. With a schema or a description, --help is answered without Run.
	Schema json.RawMessage `json:"schema,omitempty"`
	// Timeout ends a call, whose exit code is then 124. Default: DefaultTimeout.
	Timeout time.Duration `json:"-"`
	// Run executes one call. It is called from several goroutines, and must return soon after ctx has ended: when the program in the
	// guest is killed, the time is over or the VM ends, which waits for it. An *ExitError gives the exit code; another error is printed
	// for the guest and gives 1.
	Run func(ctx context.Context, c Call) error `json:"-"`
}

// Call is one call of a Command by the guest. Its fields are the adversary's words: any bytes except NUL in arguments.
type Call struct {
	Name string
	Args []string // without the name
	// Stdin reads the program's standard input; the guest is asked for no more than is read. Close ends reads.
	Stdin          io.ReadCloser
	Stdout, Stderr io.Writer // for any goroutine until Run returns; a Write waits for a guest that does not read
}

// ExitError is an exit code, 0 to 255, without a message.
type ExitError struct{ Code uint8 }

func (e *ExitError) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

// validName holds Command.Name's rule. The first character is a letter or a digit.
func validName(name string) bool {
	const first = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	return name != "" && len(name) <= 64 && strings.IndexFunc(name, func(r rune) bool { return !strings.ContainsRune(first+"._-", r) }) < 0 && strings.Contains(first, name[:1])
}

// Check returns a complete copy of the list.
func Check(list []Command) ([]Command, error) {
	if len(list) > maxCommands {
		return nil, fmt.Errorf("%d host commands: a VM can have at most %d", len(list), maxCommands)
	}
	list = slices.Clone(list)
	seen := make(map[string]bool)
	for i := range list {
		c := &list[i]
		switch {
		case !validName(c.Name):
			return nil, fmt.Errorf("host command %.80q: want a name of 1 to 64 letters, digits, dots, underscores and dashes", c.Name)
		case seen[c.Name]:
			return nil, fmt.Errorf("host command %s: there are two of that name", c.Name)
		case c.Run == nil:
			return nil, fmt.Errorf("host command %s: it has no function (Run)", c.Name)
		case len(c.Description) > maxDescription || len(c.Schema) > maxSchema:
			return nil, fmt.Errorf("host command %s: a description has at most %d KiB, a schema %d KiB", c.Name, maxDescription>>10, maxSchema>>10)
		case len(c.Schema) > 0 && json.Unmarshal(c.Schema, new(map[string]any)) != nil:
			return nil, fmt.Errorf("host command %s: its schema is no JSON object", c.Name)
		case c.Timeout < 0:
			return nil, fmt.Errorf("host command %s: the time-out is negative", c.Name)
		case c.Timeout == 0:
			c.Timeout = DefaultTimeout
		}
		seen[c.Name] = true
	}
	return list, nil
}

// Archive returns the tar archive that is unpacked in Dir of a guest of the architecture: the programs, and the list for agents.
func Archive(list []Command, architecture platform.Architecture) ([]byte, error) {
	client := clients[architecture]
	if client == nil {
		return nil, fmt.Errorf("there is no program for host commands for %q: VMs have %s", architecture, platform.Names())
	}
	tools, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("list the host commands: %w", err)
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(h tar.Header, data []byte) {
		h.Size = int64(len(data))
		_, err2 := 0, w.WriteHeader(&h)
		if err2 == nil {
			_, err2 = w.Write(data)
		}
		err = errors.Join(err, err2)
	}
	add(tar.Header{Typeflag: tar.TypeReg, Name: List, Mode: 0o444}, append(tools, '\n'))
	add(tar.Header{Typeflag: tar.TypeDir, Name: Folder + "/", Mode: 0o755}, nil)
	for i, c := range list {
		if i == 0 {
			add(tar.Header{Typeflag: tar.TypeReg, Name: path.Join(Folder, c.Name), Mode: 0o555}, client)
		} else {
			add(tar.Header{Typeflag: tar.TypeSymlink, Name: path.Join(Folder, c.Name), Linkname: list[0].Name, Mode: 0o777}, nil)
		}
	}
	return out.Bytes(), errors.Join(err, w.Close())
}

// help is what --help prints.
func (c Command) help() string {
	var schema struct {
		Description string
		Properties  map[string]struct {
			Type        any
			Description string
		}
		Required []string
	}
	_ = json.Unmarshal(c.Schema, &schema) // what is not of this form is left out
	var b strings.Builder
	fmt.Fprintf(&b, "Usage: %s [ARGUMENTS]\n", c.Name)
	for _, text := range []string{c.Description, schema.Description} {
		if text != "" {
			fmt.Fprintf(&b, "\n%s\n", text)
		}
	}
	if len(schema.Properties) > 0 {
		b.WriteString("\nArguments:\n")
	}
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		p := schema.Properties[name]
		fmt.Fprintf(&b, "  %s", name)
		if p.Type != nil {
			fmt.Fprintf(&b, " (%v)", p.Type)
		}
		if slices.Contains(schema.Required, name) {
			b.WriteString(" required")
		}
		fmt.Fprintf(&b, "  %s\n", p.Description)
	}
	return b.String()
}

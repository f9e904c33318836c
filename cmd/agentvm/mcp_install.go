package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/spf13/cobra"

	"agentvm/internal/atomicfile"
	"agentvm/internal/hostpath"
	"agentvm/internal/httpserver"
	"agentvm/internal/mcp"
)

// serveHTTP serves with the token of a file, or one that it makes and prints.
func (c *cli) serveHTTP(ctx context.Context, server *mcp.Server, f *mcpFlags) error {
	token, err := serverKey("--token-file", f.token)
	if err != nil {
		return err
	}
	if err := httpserver.CheckLoopback(f.http); err != nil {
		return fmt.Errorf("--http %w", err)
	}
	return server.Serve(ctx, f.http, token, func(url string) {
		fmt.Fprintf(c.stderr, "agentvm: serves %s at %s\n", f.name, url)
		if f.token == "" {
			fmt.Fprintf(c.stderr, "agentvm: clients send Authorization: Bearer %s\n", token)
		}
	})
}

const mcpInstallLong = `Adds agentvm mcp, with the flags behind --, to the configuration of an agent's program. What is written is shown first, and
written when you agree; --yes writes it without asking. Other entries, and the file's comments and order, stay as they are.

  claude-code  .mcp.json of the current directory
  codex        config.toml of CODEX_HOME or ~/.codex
  cursor       .cursor/mcp.json of the current directory
  vscode       .vscode/mcp.json of the current directory`

const mcpInstallExample = `  agentvm mcp install claude-code -- --mount .
  agentvm mcp install codex --yes -- --vm dev --net none`

// mcpClient is a program that can be configured.
type mcpClient struct {
	file func() (string, error)
	key  string // the object of servers; empty: TOML
}

func projectFile(name string) func() (string, error) {
	return func() (string, error) { return filepath.FromSlash(name), nil }
}

// mcpClients are the programs by name. Sources: code.claude.com/docs/en/mcp, the config reference of Codex, docs of Cursor and VS Code.
var mcpClients = map[string]mcpClient{
	"claude-code": {projectFile(".mcp.json"), "mcpServers"},
	"cursor":      {projectFile(".cursor/mcp.json"), "mcpServers"},
	"vscode":      {projectFile(".vscode/mcp.json"), "servers"},
	"codex": {func() (string, error) {
		dir := os.Getenv("CODEX_HOME")
		if dir == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				return "", err
			}
			dir = filepath.Join(home, ".codex")
		}
		return filepath.Join(dir, "config.toml"), nil
	}, ""},
}

func mcpClientNames() (list []string) {
	for name := range mcpClients {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

func (c *cli) mcpInstallCommand() *cobra.Command {
	var yes bool
	command := &cobra.Command{
		Use: "install [flags] CLIENT [-- FLAGS...]", Short: "Configure an agent's program to start agentvm mcp", Long: mcpInstallLong,
		Example: mcpInstallExample, Args: counted(1, 0), ValidArgs: mcpClientNames(),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, known := mcpClients[args[0]]
			dash := cmd.ArgsLenAtDash()
			if !known || len(args) > 1 && dash != 1 {
				return fmt.Errorf("%q: want one of %s, and flags of agentvm mcp behind --", args, strings.Join(mcpClientNames(), ", "))
			}
			served := c.mcpCommand()
			if err := served.ParseFlags(args[1:]); err != nil {
				return flagError(served, err)
			}
			if rest := served.Flags().Args(); len(rest) > 0 || served.Flags().Changed("http") {
				return fmt.Errorf("%q: want flags of agentvm mcp, without --http: clients start it themselves", args[1:])
			}
			return c.installMCP(client, append([]string{"mcp"}, args[1:]...), yes)
		},
	}
	command.Flags().BoolVarP(&yes, "yes", "y", false, "write without asking")
	return command
}

// mcpServer is the name of the entry. Clients call its tools by a name of at most 128 characters that begins with it.
const mcpServer = "agentvm"

// installMCP adds an entry that starts this program with arguments.
func (c *cli) installMCP(client mcpClient, args []string, yes bool) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	if found, err := exec.LookPath(filepath.Base(program)); err == nil && realPath(found) == realPath(program) {
		program = filepath.Base(program)
	}
	path, err := client.file()
	if err != nil {
		return err
	}
	was, err := readHostFile(path)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return err
	}
	var entry string
	var text []byte
	if client.key == "" {
		entry, text, err = addTOML(was, program, args)
	} else {
		entry, text, err = addJSON(was, client.key, program, args)
	}
	if err != nil {
		return fmt.Errorf("%s: %w; what is to be added is\n\n%s", path, err, entry)
	}
	if text == nil {
		fmt.Fprintf(c.stdout, "%s has it already:\n\n%s", path, entry)
		return nil
	}
	fmt.Fprintf(c.stdout, "To %s is added:\n\n%s\n", path, entry)
	if !yes {
		if !isTerminal(c.stdin) {
			return errors.New("nothing was written: --yes writes it without asking")
		}
		fmt.Fprint(c.stdout, "Write it? [y/N] ")
		answer, _ := bufio.NewReader(c.stdin).ReadString('\n')
		if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
			return errors.New("nothing was written")
		}
	}
	return writeClientFile(path, text)
}

// writeClientFile replaces a client's file, and follows no link that a guest may have made.
func writeClientFile(path string, text []byte) error {
	guard, err := hostGuard()
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		above, err := guard.Open(filepath.Dir(dir), hostpath.Identity{})
		if err != nil {
			return err
		}
		defer above.Close()
		root, err := above.Root()
		if err != nil {
			return err
		}
		defer root.Close()
		if err := root.Mkdir(filepath.Base(dir), 0o755); err != nil {
			return err
		}
	}
	place, err := guard.OpenNew(path, hostpath.Identity{})
	if err != nil {
		return err
	}
	defer place.Close()
	root, err := place.ParentRoot()
	if err != nil {
		return err
	}
	defer root.Close()
	mode := fs.FileMode(0o644)
	if info, err := root.Stat(place.Base()); err == nil {
		mode = info.Mode().Perm()
	}
	return atomicfile.WriteIn(root, place.Base(), text, mode)
}

// serverEntry is what starts this program.
type serverEntry struct {
	Command string   `json:"command" toml:"command"`
	Args    []string `json:"args" toml:"args"`
}

// addJSON adds the entry to an object of a JSON text, whose other bytes stay. It returns the entry, and no text when that has it already.
func addJSON(was []byte, key, program string, args []string) (entry string, text []byte, err error) {
	ours := serverEntry{program, args}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("    ", "  ")
	if err := encoder.Encode(ours); err != nil {
		return "", nil, err
	}
	member := fmt.Sprintf("    %q: %s", mcpServer, bytes.TrimSpace(b.Bytes()))
	entry = fmt.Sprintf("{\n  %q: {\n%s\n  }\n}\n", key, member)
	if len(bytes.TrimSpace(was)) == 0 {
		return entry, []byte(entry), nil
	}
	var file map[string]json.RawMessage
	if err := json.Unmarshal(was, &file); err != nil || file == nil {
		return entry, nil, fmt.Errorf("it is no plain JSON object (%w): add the entry by hand", cmp.Or(err, errors.New("null")))
	}
	var servers map[string]json.RawMessage
	if raw, there := file[key]; there {
		if err := json.Unmarshal(raw, &servers); err != nil || servers == nil {
			return entry, nil, fmt.Errorf("its %s is no object: add the entry by hand", key)
		}
	}
	if raw, there := servers[mcpServer]; there {
		var now serverEntry
		if json.Unmarshal(raw, &now) == nil && now.Command == ours.Command && slices.Equal(now.Args, ours.Args) {
			return entry, nil, nil
		}
		return entry, nil, fmt.Errorf("it has another entry %s: remove that one first", mcpServer)
	}
	at, err := objectStart(was, key)
	if err != nil {
		return entry, nil, err
	}
	added := "\n" + member
	switch {
	case servers == nil && len(file) == 0:
		added = fmt.Sprintf("\n  %q: {%s\n  }\n", key, added)
	case servers == nil:
		added = fmt.Sprintf("\n  %q: {%s\n  },", key, added)
	case len(servers) == 0:
		added += "\n  "
	default:
		added += ","
	}
	text = slices.Concat(was[:at], []byte(added), was[at:])
	if !json.Valid(text) {
		return entry, nil, errors.New("the entry does not fit into it: add it by hand")
	}
	return entry, text, nil
}

// objectStart returns where the members begin of the object that a JSON object has by a key, or of that object itself when it has no such key.
func objectStart(text []byte, key string) (int64, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if _, err := d.Token(); err != nil {
		return 0, err
	}
	begin := d.InputOffset()
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return 0, err
		}
		if name == key {
			_, err := d.Token()
			return d.InputOffset(), err
		}
		var skipped json.RawMessage
		if err := d.Decode(&skipped); err != nil {
			return 0, err
		}
	}
	return begin, nil
}

// addTOML is addJSON for the configuration of Codex.
func addTOML(was []byte, program string, args []string) (entry string, text []byte, err error) {
	type servers struct {
		Servers map[string]serverEntry `toml:"mcp_servers"`
	}
	ours := serverEntry{program, args}
	var b bytes.Buffer
	encoder := toml.NewEncoder(&b)
	encoder.Indent = ""
	if err := encoder.Encode(servers{map[string]serverEntry{mcpServer: ours}}); err != nil {
		return "", nil, err
	}
	entry = strings.TrimPrefix(b.String(), "[mcp_servers]\n")
	same := func(now serverEntry) bool { return now.Command == ours.Command && slices.Equal(now.Args, ours.Args) }
	var file servers
	if _, err := toml.Decode(string(was), &file); err != nil {
		return entry, nil, err
	}
	if now, there := file.Servers[mcpServer]; there {
		if same(now) {
			return entry, nil, nil
		}
		return entry, nil, fmt.Errorf("it has another entry mcp_servers.%s: remove that one first", mcpServer)
	}
	if text = bytes.Clone(was); len(text) > 0 {
		text = append(bytes.TrimRight(text, "\n"), "\n\n"...)
	}
	text = append(text, entry...)
	file = servers{}
	// An inline table cannot be continued, which our decoder does not mind.
	inline := regexp.MustCompile(`(?m)^[ \t]*["']?mcp_servers["']?[ \t]*=`).Match(was)
	if _, err := toml.Decode(string(text), &file); err != nil || inline || !same(file.Servers[mcpServer]) {
		return entry, nil, errors.New("the entry does not fit into it: add it by hand")
	}
	return entry, text, nil
}

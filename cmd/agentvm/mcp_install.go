package main

import (
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
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"agentvm/internal/api/mcp"
	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/hostpath"
	"agentvm/internal/host/tomlfile"
	"agentvm/internal/httpserver"
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

const mcpInstallLong = `Adds agentvm mcp, with the flags after --, to the configuration of an agent's program. It shows first what it would write, and
writes it when you agree; --yes writes it without asking. Other entries, and the file's comments and order, stay as they are. With --hook the
commands of Claude Code's Bash tool run in the VM, too: see agentvm mcp hook.

  claude-code  .mcp.json of the current directory; with --hook also .claude/settings.local.json
  codex        config.toml of CODEX_HOME or ~/.codex
  cursor       .cursor/mcp.json of the current directory
  vscode       .vscode/mcp.json of the current directory`

const mcpInstallExample = `  agentvm mcp install claude-code -- --mount .
  agentvm mcp install claude-code --hook -- --mount .:/work:cow
  agentvm mcp install codex --yes -- --vm dev --net none`

// mcpClient is a file by which a program is configured.
type mcpClient struct {
	file func() (string, error)
	add  func(was []byte, program string, args []string) (entry string, text []byte, err error)
}

func projectFile(name string) func() (string, error) {
	return func() (string, error) { return filepath.FromSlash(name), nil }
}

// mcpClients are the programs by name. Sources: code.claude.com/docs/en/mcp, the config reference of Codex, docs of Cursor and VS Code.
var mcpClients = map[string]mcpClient{
	"claude-code": {projectFile(".mcp.json"), addServer("mcpServers")},
	"cursor":      {projectFile(".cursor/mcp.json"), addServer("mcpServers")},
	"vscode":      {projectFile(".vscode/mcp.json"), addServer("servers")},
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
	}, addTOML},
}

// claudeHook is the file of Claude Code's hooks that belongs to this user of the project alone.
var claudeHook = mcpClient{projectFile(".claude/settings.local.json"), addHook}

func mcpClientNames() (list []string) {
	for name := range mcpClients {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

func (c *cli) mcpInstallCommand() *cobra.Command {
	var yes, hook bool
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
			if hook && args[0] != "claude-code" {
				return fmt.Errorf("--hook: %s has no such hooks: want claude-code", args[0])
			}
			err := c.installMCP(client, args[1:], yes)
			if err == nil && hook {
				err = c.installMCP(claudeHook, args[1:], yes)
			}
			return err
		},
	}
	command.Flags().BoolVarP(&yes, "yes", "y", false, "write without asking")
	command.Flags().BoolVar(&hook, "hook", false, "with claude-code: run the commands of its Bash tool in the VM, too")
	return command
}

// mcpServer is the name of the entry. Clients call its tools by a name of at most 128 characters that begins with it.
const mcpServer = "agentvm"

// installMCP adds an entry that starts this program with flags of mcp.
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
	entry, text, err := client.add(was, program, args)
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
		if !askYesNo(c.stdin, c.stdout, "Write it?") {
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
	Command string   `json:"command"`
	Args    []string `json:"args"`
}

func newServerEntry(program string, args []string) serverEntry {
	return serverEntry{program, append([]string{"mcp"}, args...)}
}

func (e serverEntry) equal(o serverEntry) bool {
	return e.Command == o.Command && slices.Equal(e.Args, o.Args)
}

// isTable says whether a table of TOML is the entry.
func (e serverEntry) isTable(v any) bool {
	table, _ := v.(map[string]any)
	args, _ := table["args"].([]any)
	return table["command"] == e.Command && slices.EqualFunc(args, e.Args, func(a any, b string) bool { return a == b })
}

// addServer returns what adds the entry to the object of servers that a JSON object has by a key.
func addServer(key string) func(was []byte, program string, args []string) (string, []byte, error) {
	return func(was []byte, program string, args []string) (string, []byte, error) {
		ours := newServerEntry(program, args)
		return addJSON(was, []string{key}, mcpServer, ours, func(place json.RawMessage) (there bool, err error) {
			var servers map[string]json.RawMessage
			if err := json.Unmarshal(place, &servers); err != nil {
				return false, err
			}
			raw, there := servers[mcpServer]
			var now serverEntry
			if there && (json.Unmarshal(raw, &now) != nil || !now.equal(ours)) {
				return false, fmt.Errorf("it has another entry %s: remove that one first", mcpServer)
			}
			return there, nil
		})
	}
}

// hookEntry is a member of an array of Claude Code's hooks.
type hookEntry struct {
	Matcher string        `json:"matcher"`
	Hooks   []hookProgram `json:"hooks"`
}

type hookProgram struct {
	Type    string `json:"type"`
	Command string `json:"command"`
}

// addHook adds the hook to Claude Code's settings. When it cannot be run the call is not made: Claude Code would make it after another exit code.
func addHook(was []byte, program string, args []string) (string, []byte, error) {
	words := []string{quoteShell(program), "mcp", "hook"}
	for _, arg := range args {
		words = append(words, quoteShell(arg))
	}
	ours := hookEntry{"Bash|Monitor|PowerShell", []hookProgram{{"command", fmt.Sprintf("%s || exit %d", strings.Join(words, " "), hookBlocks)}}}
	return addJSON(was, []string{"hooks", preToolUse}, "", ours, func(place json.RawMessage) (there bool, err error) {
		var list []hookEntry
		if err := json.Unmarshal(place, &list); err != nil {
			return false, err
		}
		for _, e := range list {
			if e.Matcher == ours.Matcher && slices.Equal(e.Hooks, ours.Hooks) {
				return true, nil
			}
			for _, h := range e.Hooks {
				if strings.Contains(h.Command, " mcp hook") {
					return false, errors.New("it has another hook agentvm mcp hook: remove that one first")
				}
			}
		}
		return false, nil
	})
}

// addJSON adds a value to the object or, when it has no name, to the array that a JSON text has at the end of a path of names. The other bytes stay. It
// returns what is added, and no text when has finds the value in that place.
func addJSON(was []byte, path []string, name string, value any, has func(place json.RawMessage) (bool, error)) (entry string, text []byte, err error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent(indent(len(path)), "  ")
	if err := encoder.Encode(value); err != nil {
		return "", nil, err
	}
	added := indent(len(path)) + strings.TrimSpace(b.String())
	if name != "" {
		added = fmt.Sprintf("%s%q: %s", indent(len(path)), name, strings.TrimSpace(b.String()))
	}
	// within is what is added to the object at a depth.
	within := func(depth int) string {
		text := added
		for i := len(path) - 1; i >= depth; i-- {
			brackets := "{}"
			if i == len(path)-1 && name == "" {
				brackets = "[]"
			}
			text = fmt.Sprintf("%s%q: %c\n%s\n%[1]s%[5]c", indent(i), path[i], brackets[0], text, brackets[1])
		}
		return text
	}
	entry = "{\n" + within(0) + "\n}\n"
	if len(bytes.TrimSpace(was)) == 0 {
		return entry, []byte(entry), nil
	}
	place, depth := json.RawMessage(was), 0
	var members map[string]json.RawMessage
	for ; depth < len(path); depth++ {
		members = nil
		if err := json.Unmarshal(place, &members); err != nil || members == nil {
			if depth == 0 {
				return entry, nil, fmt.Errorf("it is no plain JSON object (%w): add the entry by hand", cmp.Or(err, errors.New("null")))
			}
			return entry, nil, fmt.Errorf("its %s is no object: add the entry by hand", path[depth-1])
		}
		next, there := members[path[depth]]
		if !there {
			break
		}
		place = next
	}
	empty := len(members) == 0
	if depth == len(path) {
		var array []json.RawMessage
		members = nil
		err := json.Unmarshal(place, &members)
		if name == "" {
			err = json.Unmarshal(place, &array)
		}
		if empty = len(members)+len(array) == 0; err != nil || empty && members == nil && array == nil {
			return entry, nil, fmt.Errorf("its %s is no %s: add the entry by hand", path[depth-1], map[bool]string{false: "object", true: "array"}[name == ""])
		}
		if there, err := has(place); there || err != nil {
			return entry, nil, err
		}
	}
	at, err := jsonStart(was, path[:depth])
	if err != nil {
		return entry, nil, err
	}
	end := ","
	if empty {
		end = "\n" + strings.TrimPrefix(indent(depth), "  ")
	}
	text = slices.Concat(was[:at], []byte("\n"+within(depth)+end), was[at:])
	if !json.Valid(text) {
		return entry, nil, errors.New("the entry does not fit into it: add it by hand")
	}
	return entry, text, nil
}

// indent is what is before the members of an object at a depth of a JSON text.
func indent(depth int) string { return strings.Repeat("  ", depth+1) }

// jsonStart returns where the members of an object or array begin, which a path of names finds in a JSON object.
func jsonStart(text []byte, path []string) (int64, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	for {
		if _, err := d.Token(); err != nil || len(path) == 0 {
			return d.InputOffset(), err
		}
		for {
			name, err := d.Token()
			if err != nil {
				return 0, err
			}
			if name == path[0] {
				break
			}
			var skipped json.RawMessage
			if err := d.Decode(&skipped); err != nil {
				return 0, err
			}
		}
		path = path[1:]
	}
}

// addTOML is addServer for the configuration of Codex.
func addTOML(was []byte, program string, args []string) (entry string, text []byte, err error) {
	ours := newServerEntry(program, args)
	entry = "[mcp_servers." + mcpServer + "]\ncommand = " + tomlfile.Value(ours.Command) + "\nargs = " + tomlfile.Value(ours.Args) + "\n"
	file, err := tomlfile.Parse("line", was)
	if err != nil {
		return entry, nil, err
	}
	servers, _ := file.Tree["mcp_servers"].(map[string]any)
	if now, there := servers[mcpServer]; there {
		if ours.isTable(now) {
			return entry, nil, nil
		}
		return entry, nil, fmt.Errorf("it has another entry mcp_servers.%s: remove that one first", mcpServer)
	}
	if text = bytes.Clone(was); len(text) > 0 {
		text = append(bytes.TrimRight(text, "\n"), "\n\n"...)
	}
	text = append(text, entry...)
	if _, err := tomlfile.Parse("line", text); err != nil { // as in the case of an inline table, which cannot be continued
		return entry, nil, errors.New("the entry does not fit into it: add it by hand")
	}
	return entry, text, nil
}

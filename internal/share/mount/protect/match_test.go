package protect

import (
	"strings"
	"testing"
)

func TestStanding(t *testing.T) {
	for path, want := range map[string]Standing{
		"/home/u/proj":           Free,
		".envrc":                 Listed,
		"a/b/c/.envrc":           Listed,
		"a/.ENVRC":               Listed,
		"a/.envrc.":              Listed,
		"a/.envrc ":              Listed,
		"a/.envrc::$DATA":        Listed,
		"a/ENVRC~1":              Listed,
		"a/.env\u200crc":         Listed,
		"a/.env\u034frc":         Listed,
		"a/.env\ufe0frc":         Listed,
		"a/\uff0eenvrc":          Listed,
		"a/.envrc2":              Free,
		"a/envrc":                Free,
		".vscode":                Above,
		".vscode/tasks.json":     Listed,
		"x/.VSCode/Tasks.JSON/y": Listed,
		".vscode/other.json":     Free,
		"AGENTV~1.TOM":           Listed,
		"AG12AB~1.TOM":           Listed,
		"AGENTV~1.TXT":           Free,
		"deep/agentvm.toml":      Listed,
		"VSCODE~1/TASKS~1.JSO":   Listed,
		"x.code-workspace":       Listed,
		".claude":                Above,
		".claude/skills/x/y":     Listed,
		".claude/worktrees/a":    Free,
		".claude/worktrees/a/.claude/settings.json": Listed,
		".codex/config.toml":                        Listed,
		".codex/worktrees/a/main.go":                Free,
		".codex/worktrees/a/.envrc":                 Listed,
		".codex/node_modules/x":                     Listed,
		".opencode/plugin/node_modules/x":           Listed,
		".opencode.json":                            Listed,
		"Documents/Cline/Hooks/TaskStart":           Listed,
		"node_modules/p/.vscode/tasks.json":         Free,
		"Node_Modules/p/.vscode/tasks.json":         Listed,
		".github/hooks/x":                           Listed,
		".github/workflows/ci.yml":                  Free,
		"Makefile":                                  Free,
		"package.json":                              Free,
		".config/.config/git/config":                Listed,
		"home/.config/nvim/init.lua":                Listed,
	} {
		if got := NewState().Walk(path).Standing(); got != want {
			t.Errorf("%q: %d, want %d", path, got, want)
		}
	}
	mounted := NewState().Walk("/home/u/node_modules/p").Entered()
	if got := mounted.Walk(".vscode/tasks.json").Standing(); got != Listed {
		t.Errorf("in a mount below node_modules: %d", got)
	}
}

// TestRows checks that each name of the table is protected at any depth and has a source.
func TestRows(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Protected {
		if r.Reader == "" || !strings.HasPrefix(r.Source, "https://") && !strings.HasPrefix(r.Source, "docs/") {
			t.Errorf("%q: source %q", r.Reader, r.Source)
		}
		for _, name := range r.Names {
			if seen[name] {
				t.Errorf("%s is there twice", name)
			}
			seen[name] = true
			name = strings.ReplaceAll(name, "*", "x")
			for _, path := range []string{name, "a/b/" + name, "/home/u/" + strings.ToUpper(name), name + "/below"} {
				if NewState().Walk(path).Standing() != Listed {
					t.Errorf("%s is not protected", path)
				}
			}
		}
	}
	for _, r := range Instructions {
		for _, name := range r.Names {
			if NewInstructions().Walk("a/"+name).Standing() != Listed {
				t.Errorf("%s is not among the instructions", name)
			}
			if NewState().Walk("a/"+name).Standing() == Listed {
				t.Errorf("%s is not writable", name)
			}
		}
	}
}

func TestGuards(t *testing.T) {
	for rest, want := range map[string][2]bool{
		"": {false, true}, "config": {true, true}, "CONFIG": {true, true}, "hooks/x": {true, true}, "HEAD": {false, false}, "config.lock": {false, false},
		"CONFIG~1.WOR": {true, true}, "COMMON~1": {true, true}, "config::$DATA": {true, true}, "hooks.": {true, true},
		"modules": {false, true}, "modules/a/config": {true, true}, "modules/a/index": {false, true}, "WORKTR~1/x/gitdir": {true, true},
	} {
		if file, directory := Guards(rest); file != want[0] || directory != want[1] {
			t.Errorf("%q: %v %v, want %v", rest, file, directory, want)
		}
	}
	for _, name := range []string{".git", ".GIT", "git~1", ".git.", ".git ", ".git::$INDEX_ALLOCATION", ".g\u200cit", ".g\u206fit"} {
		if !IsGit(name) {
			t.Errorf("%q is not .git", name)
		}
	}
	for _, name := range []string{"git", ".gitignore", ".github", "git~", ".git2"} {
		if IsGit(name) {
			t.Errorf("%q is .git", name)
		}
	}
}

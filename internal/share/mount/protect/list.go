package protect

// Row is names that programs of the host execute, or obey, without anybody who asks for it.
type Row struct {
	// Reader is the program.
	Reader string
	// Source is where its authors, or those of its system, say so.
	Source string
	// Names are paths of which the last element, with all below it, is protected wherever it comes in a path of the host. "*" at the beginning
	// of an element stands for anything.
	Names []string
}

// Protected are what a guest reads in a writable mount and does not change. Not in the list is what people run themselves: Makefile, scripts,
// package.json, build.rs.
var Protected = []Row{
	{"agentvm", "docs/guide/reference.md", []string{"agentvm.toml"}},

	// Agents: servers and hooks that they start, commands and skills that they follow.
	{"agents with MCP servers", "https://modelcontextprotocol.io/docs/develop/connect-local-servers", []string{".mcp.json", "claude_desktop_config.json"}},
	{"Claude Code", "https://code.claude.com/docs/en/settings", []string{
		".claude.json", ".claude/settings.json", ".claude/settings.local.json", ".claude/managed-settings.json", ".claude/launch.json", ".claude/.mcp.json",
		".claude/hooks", ".claude/agents", ".claude/skills", ".claude/commands", ".claude/plugins", ".claude/output-styles", ".claude/workflows", ".claude-plugin",
	}},
	{"Codex", "https://developers.openai.com/codex/config-reference", []string{".codex"}},
	{"agents with skills", "https://agentskills.io/specification", []string{".agents/skills", ".agents/plugins", ".agents/hooks"}},
	{"Cursor", "https://cursor.com/docs/agent/hooks", []string{".cursor"}},
	{"Gemini CLI", "https://geminicli.com/docs/reference/configuration", []string{".gemini"}},
	{"opencode", "https://opencode.ai/docs/config", []string{"opencode.json", "opencode.jsonc", ".opencode.json", ".opencode", ".config/opencode"}},
	{"Qwen Code", "https://qwenlm.github.io/qwen-code-docs/en/users/configuration/settings", []string{".qwen"}},
	{"Crush", "https://github.com/charmbracelet/crush", []string{".crush.json", "crush.json", ".config/crush"}},
	{"Kiro", "https://kiro.dev/docs/hooks", []string{".kiro"}},
	{"Roo Code", "https://docs.roocode.com/features/mcp/using-mcp-in-roo", []string{".roo", ".roomodes"}},
	{"Kilo Code", "https://kilo.ai/docs/automate/mcp/using-in-kilo-code", []string{".kilocode", ".kilo", ".kilocodemodes"}},
	{"Cline", "https://docs.cline.bot/customization/hooks", []string{".cline", ".clinerules/hooks", ".clinerules/workflows", "Cline/Hooks", "Cline/Workflows"}},
	{"Amp", "https://ampcode.com/manual", []string{".amp", ".config/amp"}},
	{"Factory", "https://docs.factory.ai/cli/configuration/settings", []string{".factory"}},
	{"Windsurf", "https://docs.windsurf.com/windsurf/cascade/hooks", []string{".windsurf", ".codeium"}},
	{"GitHub Copilot", "https://docs.github.com/en/copilot/how-tos/use-copilot-agents/coding-agent/use-hooks", []string{
		".github/hooks", ".github/agents", ".github/skills", ".github/copilot", ".github/prompts", ".github/chatmodes", ".copilot",
	}},
	{"Goose", "https://block.github.io/goose/docs/guides/config-files", []string{".config/goose", ".goose"}},
	{"Aider", "https://aider.chat/docs/config/aider_conf.html", []string{".aider.conf.yml", ".aider.conf.yaml"}},
	{"Continue", "https://docs.continue.dev/reference", []string{".continue"}},
	{"Augment", "https://docs.augmentcode.com/cli/custom-commands", []string{".augment"}},
	{"Junie", "https://www.jetbrains.com/help/junie/model-context-protocol-mcp.html", []string{".junie/mcp"}},
	{"Amazon Q", "https://docs.aws.amazon.com/amazonq/latest/qdeveloper-ug/command-line-mcp.html", []string{".amazonq"}},
	{"Antigravity", "https://antigravity.google/docs/skills", []string{".agent/workflows", ".agent/skills", ".antigravity"}},
	{"Trae", "https://docs.trae.ai/ide/model-context-protocol", []string{".trae"}},
	{"OpenHands", "https://docs.openhands.dev/openhands/usage/customization/repository", []string{".openhands"}},
	{"Mistral Vibe", "https://github.com/mistralai/mistral-vibe", []string{".vibe"}},
	{"pi", "https://github.com/badlogic/pi-mono", []string{".pi"}},
	{"Rovo Dev", "https://support.atlassian.com/rovo/docs/manage-rovo-dev-cli-settings", []string{".rovodev"}},
	{"Claude Desktop", "https://modelcontextprotocol.io/docs/develop/connect-local-servers", []string{".config/Claude", "Application Support/Claude"}},

	// Editors.
	{"Visual Studio Code", "https://code.visualstudio.com/docs/editing/workspaces/workspace-trust", []string{
		".vscode/tasks.json", ".vscode/settings.json", ".vscode/launch.json", ".vscode/mcp.json", ".vscode/extensions", "*.code-workspace", ".theia",
		".config/Code/User", ".config/Code - Insiders/User", ".config/VSCodium/User", ".config/Cursor/User", ".config/Windsurf/User", "Application Support/Code/User",
		"Application Support/Cursor/User", "AppData/Roaming/Code/User", "AppData/Roaming/Cursor/User", ".vscode-server", ".cursor-server",
	}},
	{"Visual Studio", "https://learn.microsoft.com/en-us/visualstudio/ide/customize-build-and-debug-tasks-in-visual-studio", []string{".vs/tasks.vs.json", ".vs/launch.vs.json", "tasks.vs.json", "launch.vs.json"}},
	{"JetBrains", "https://www.jetbrains.com/help/idea/run-debug-configuration.html", []string{".idea", ".run", ".fleet", ".ideavimrc"}},
	{"Zed", "https://zed.dev/docs/tasks", []string{".zed", ".config/zed"}},
	{"Dev Containers", "https://containers.dev/implementors/json_reference", []string{".devcontainer", ".devcontainer.json"}},
	{"Vim", "https://vimhelp.org/starting.txt.html", []string{".exrc", ".vimrc", "_vimrc", ".gvimrc", ".vim", "vimfiles", ".lvimrc", ".local.vimrc", ".config/vim"}},
	{"Neovim", "https://neovim.io/doc/user/options.html#'exrc'", []string{".nvim.lua", ".nvimrc", ".config/nvim", ".local/share/nvim", ".lazy.lua"}},
	{"Emacs", "https://www.gnu.org/software/emacs/manual/html_node/emacs/Directory-Variables.html", []string{".dir-locals.el", ".dir-locals-2.el", ".emacs", ".emacs.el", ".emacs.d", ".config/emacs", ".doom.d", ".spacemacs", ".spacemacs.d"}},
	{"Helix", "https://docs.helix-editor.com/configuration.html", []string{".helix", ".config/helix"}},
	{"Sublime Text", "https://www.sublimetext.com/docs/projects.html", []string{"*.sublime-project", ".config/sublime-text"}},
	{"Kakoune, micro", "https://github.com/mawww/kakoune", []string{".config/kak", ".config/micro"}},

	// Environments that a shell or an editor enters with a directory.
	{"direnv", "https://direnv.net/man/direnv.1.html", []string{".envrc", ".direnvrc", ".config/direnv"}},
	{"mise, asdf", "https://mise.jdx.dev/configuration.html", []string{
		".mise.toml", "mise.toml", ".mise.local.toml", "mise.local.toml", ".mise", ".config/mise.toml", ".config/mise", ".rtx.toml", ".tool-versions", ".asdfrc",
	}},
	{"autoenv, rvm, SDKMAN", "https://rvm.io/workflow/rvmrc", []string{".autoenv", ".autoenv.zsh", ".autoenv_leave.zsh", ".rvmrc", ".sdkmanrc"}},

	// Package managers and build systems, which editors start.
	{"Cargo", "https://doc.rust-lang.org/cargo/reference/config.html", []string{".cargo/config.toml", ".cargo/config", ".cargo/env", ".cargo/bin", ".cargo/credentials.toml", ".cargo/credentials", ".rustup"}},
	{"npm", "https://docs.npmjs.com/cli/configuring-npm/npmrc", []string{".npmrc"}},
	{"Yarn", "https://yarnpkg.com/configuration/yarnrc", []string{".yarnrc.yml", ".yarnrc", ".yarn/releases", ".yarn/plugins", ".yarn/sdks"}},
	{"pnpm, Bun", "https://pnpm.io/pnpmfile", []string{".pnpmfile.cjs", ".pnpmfile.mjs", "pnpmfile.js", "bunfig.toml", ".bunfig.toml", ".config/pnpm"}},
	{"Bazel", "https://bazel.build/run/bazelrc", []string{".bazelrc", ".bazeliskrc"}},
	{"Maven, Gradle", "https://maven.apache.org/configure.html", []string{
		".mvn", ".m2/settings.xml", ".m2/settings-security.xml", ".m2/extensions.xml", ".gradle/init.d", ".gradle/init.gradle", ".gradle/init.gradle.kts", ".gradle/gradle.properties",
	}},
	{"Ruby, Python", "https://bundler.io/man/bundle-config.1.html", []string{".bundle/config", ".gemrc", ".pypirc", ".config/pip", ".pip", ".condarc", ".pydistutils.cfg", ".config/uv", ".config/pypoetry"}},
	{"Go, Java, .NET", "https://pkg.go.dev/cmd/go#hdr-Environment_variables", []string{".config/go/env", ".lein/profiles.clj", ".config/NuGet", ".nuget/NuGet"}},

	// Versions' control.
	{"git", "https://git-scm.com/docs/git-config#FILES", []string{".gitconfig", ".config/git", ".git-credentials"}},
	{"hooks of git", "https://git-scm.com/docs/githooks", []string{
		".husky", ".githooks", ".git-hooks", ".huskyrc", ".huskyrc.json", ".pre-commit-config.yaml", ".pre-commit-config.yml", ".pre-commit-hooks.yaml", "prek.toml",
		"lefthook.yml", "lefthook.yaml", "lefthook.toml", "lefthook.json", ".lefthook.yml", ".lefthook.yaml", ".lefthook.toml", ".lefthook.json", "lefthook-local.yml", "lefthook-local.yaml",
		"lefthook-local.toml", ".lefthook-local.yml", ".lefthook", ".lefthook-local", ".config/lefthook.yml", ".config/lefthook.yaml", ".config/lefthook.toml",
		".overcommit.yml", ".git-hooks.yml", ".lintstagedrc", ".lintstagedrc.json", ".lintstagedrc.yaml", ".lintstagedrc.yml", ".lintstagedrc.js", ".lintstagedrc.mjs", ".lintstagedrc.cjs",
		".simple-git-hooks.json", ".simple-git-hooks.js", ".simple-git-hooks.cjs", "simple-git-hooks.json", "captainhook.json",
	}},
	{"Mercurial", "https://www.mercurial-scm.org/help/topics/config", []string{".hg/hgrc", ".hg/hgrc-not-shared", ".hg/sharedpath", ".hgrc", ".config/hg"}},
	{"Jujutsu, Sapling, Subversion", "https://docs.jj-vcs.dev/latest/config", []string{".jj/repo", ".jj/workspace-config.toml", ".config/jj", ".jjconfig.toml", ".sl/config", ".subversion/config", ".subversion/servers"}},

	// Shells and terminals.
	{"bash", "https://www.gnu.org/software/bash/manual/html_node/Bash-Startup-Files.html", []string{
		".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".bash_completion", ".bashrc.d", ".profile", ".inputrc",
	}},
	{"zsh", "https://zsh.sourceforge.io/Doc/Release/Files.html", []string{
		".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".zshrc.local", ".config/zsh", ".oh-my-zsh", ".zsh", ".zsh_plugins.txt", ".p10k.zsh", ".zimrc", ".antigen",
	}},
	{"fish", "https://fishshell.com/docs/current/language.html#configuration-files", []string{".config/fish", ".local/share/fish"}},
	{"other shells", "https://man.openbsd.org/ksh.1", []string{
		".kshrc", ".mkshrc", ".shrc", ".cshrc", ".tcshrc", ".login", ".logout", ".config/nushell", ".config/elvish", ".config/powershell", "*profile.ps1", ".xonshrc", ".config/xonsh",
	}},
	{"prompts and terminals", "https://starship.rs/config", []string{
		".config/starship.toml", ".tmux.conf", ".tmux", ".config/tmux", ".screenrc", ".config/kitty", ".config/alacritty", ".config/wezterm", ".wezterm.lua", ".config/ghostty", ".config/zellij", ".config/atuin",
	}},

	// Sessions of a desktop, and services.
	{"X sessions", "https://man.archlinux.org/man/startx.1", []string{".xprofile", ".xinitrc", ".xsession", ".xsessionrc", ".xserverrc", ".xbindkeysrc", ".pam_environment"}},
	{"desktops", "https://specifications.freedesktop.org/autostart/latest", []string{
		".config/autostart", ".config/autostart-scripts", ".config/plasma-workspace", ".local/share/applications", ".local/share/dbus-1", ".local/share/gnome-shell", ".local/share/nautilus", ".local/share/kio",
		".config/mimeapps.list", ".config/sway", ".config/hypr", ".config/i3", ".i3", ".config/awesome", ".config/bspwm", ".config/sxhkd", ".config/niri", ".config/waybar", ".xmonad", ".config/xmonad", ".config/qtile",
	}},
	{"systemd", "https://www.freedesktop.org/software/systemd/man/latest/systemd.unit.html", []string{".config/systemd", ".local/share/systemd", ".config/environment.d", ".config/user-tmpfiles.d"}},
	{"launchd", "https://developer.apple.com/library/archive/documentation/MacOSX/Conceptual/BPSystemStartup/Chapters/CreatingLaunchdJobs.html", []string{"LaunchAgents", "LaunchDaemons"}},
	{"Windows' shell", "https://learn.microsoft.com/en-us/windows/win32/setupapi/run-and-runonce-registry-keys", []string{"Start Menu/Programs/Startup"}},
	{"programs by name", "https://www.freedesktop.org/software/systemd/man/latest/file-hierarchy.html", []string{".local/bin", ".local/lib"}},

	// Programs that obey files of a home or of the current directory, and keys.
	{"ssh", "https://man.openbsd.org/ssh_config.5", []string{".ssh"}},
	{"GnuPG", "https://www.gnupg.org/documentation/manuals/gnupg/GPG-Configuration.html", []string{".gnupg"}},
	{"gdb, lldb", "https://sourceware.org/gdb/current/onlinedocs/gdb.html/Initialization-Files.html", []string{".gdbinit", ".gdbearlyinit", ".config/gdb", ".lldbinit", ".lldbinit-lldb"}},
	{"interpreters", "https://stat.ethz.ch/R-manual/R-devel/library/base/html/Startup.html", []string{
		".Rprofile", ".Renviron", ".ghci", ".ocamlinit", ".irbrc", ".pryrc", ".pdbrc", ".pdbrc.py", ".ipython", ".jupyter", ".julia/config", ".octaverc", ".config/utop", ".perldb", ".config/matplotlib",
	}},
	{"databases' shells", "https://www.postgresql.org/docs/current/app-psql.html", []string{".psqlrc", ".pgpass", ".my.cnf", ".mylogin.cnf", ".sqliterc", ".config/sqlite3", ".mongorc.js", ".mongoshrc.js"}},
	{"transfers and mail", "https://everything.curl.dev/cmdline/configfile.html", []string{".curlrc", ".wgetrc", ".netrc", "_netrc", ".lesskey", ".lessfilter", ".mailcap", ".forward", ".procmailrc", ".fetchmailrc", ".mailrc", ".muttrc", ".config/mutt", ".nanorc", ".config/nano"}},
	{"clouds", "https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig", []string{
		".kube/config", ".kube/kuberc", ".kube/plugins", ".krew", ".aws/config", ".aws/credentials", ".aws/cli/alias", ".azure", ".config/gcloud", ".terraformrc", ".terraform.d", ".config/gh", ".config/glab-cli", ".config/helm", ".local/share/helm",
	}},
	{"Docker, Podman", "https://docs.docker.com/reference/cli/docker/#docker-cli-configuration-file-configjson-properties", []string{
		".docker/config.json", ".docker/cli-plugins", ".docker/contexts", ".docker/daemon.json", ".dockercfg", ".config/docker", ".config/containers",
	}},
	{"act", "https://nektosact.com/usage/index.html#configuration", []string{".actrc"}},
}

// unprotected are directories in the protected ones that are others' working trees.
var unprotected = []Row{
	{"Codex", "https://developers.openai.com/codex/app/worktrees", []string{".codex/worktrees"}},
	{"Cursor", "https://cursor.com/docs/configuration/worktrees", []string{".cursor/worktrees"}},
	{"Gemini CLI", "https://geminicli.com/docs/cli/git-worktrees", []string{".gemini/worktrees"}},
	{"Windsurf", "https://docs.windsurf.com/windsurf/cascade/worktrees", []string{".windsurf/worktrees"}},
	{"Qwen Code", "https://qwenlm.github.io/qwen-code-docs", []string{".qwen/worktrees"}},
}

// Instructions are texts that agents follow. A guest may write them, for writing them is what agents are asked for; the user learns of it.
var Instructions = []Row{
	{"agents", "https://agents.md", []string{"AGENTS.md", "AGENTS.override.md", "AGENT.md"}},
	{"Claude Code", "https://code.claude.com/docs/en/memory", []string{"CLAUDE.md", "CLAUDE.local.md", ".claude/rules"}},
	{"Gemini CLI", "https://geminicli.com/docs/cli/gemini-md", []string{"GEMINI.md"}},
	{"Qwen Code, Crush, Warp", "https://docs.warp.dev/agent-platform/capabilities/rules", []string{"QWEN.md", "CRUSH.md", "WARP.md"}},
	{"Cursor, Windsurf, Cline, Goose, Roo Code", "https://cursor.com/docs/context/rules", []string{".cursorrules", ".windsurfrules", ".clinerules", ".goosehints", ".roorules"}},
	{"GitHub Copilot", "https://docs.github.com/en/copilot/how-tos/configure-custom-instructions/add-repository-instructions", []string{".github/copilot-instructions.md", ".github/instructions"}},
	{"Zed, Junie, Augment", "https://zed.dev/docs/ai/rules", []string{".rules", ".junie/guidelines.md", ".augment-guidelines"}},
}

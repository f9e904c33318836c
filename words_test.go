package agentvm_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/scanner"
)

// replaced are the identifiers that must not come back in a folder and those below it, besides oldIdentifiers, as a regular
// expression for the whole identifier.
//
// Names that were replaced, and by what:
//
//	behindSlice, comesBack (of a translation): afterSlice, reinstallIfUnchanged
//	confinement, entrance, heldGate, page (in gateway and reach): portAccess, inboundGuard, attributingDialer, statusServer
//	desk, drive, drift, own, outlast (in vm): workQueue, runLoop, runUntilInterrupted, goTracked, sleepActive
//	fewest..., most..., rests: min..., max..., backoffUntil
//	gather, layBase, keepBase, offspring, parts, photograph, upper (in vm): acquire, createBase, Base.Write, forkState, resources, capture, overlayDisk
//	greet, meet, personalStart, startTwice (in vm): handshake, connect, configureGuest, bootAndCapture
//	JIT_APART, JIT_LATE, JIT_STUCK, JIT_VAIN: JIT_SPLIT_ACCESS, JIT_BUDGET_EXIT, JIT_NO_PROGRESS
//	judge, knock, surroundings, told: evaluator, tcpProbe, environment, mayLearn
//	NewOwnImage, stranger, takeOver, vouch (of an image): NewTrustedImage, untrusted, restoreUntrusted, trusted
//	paced, turns, visit (in preview): stallTimeoutWriter, dialLimiter, request
//	lesson, machineFlags, patience, teach, tell (in cmd/agentvm): learnResult, vmFlags, interruptWindow, report, print
//	farewell, greet, inlet, outlet, letGo, pour (in RPC): goodbye, handshake, sinkReader, sinkWriter, release, splice
//	dismiss, greeting, harden, hurry, judge, obey, presence (in daemon): killAndRemove, hello, forceStop, unblockWriters, verify, handleSignal, refCount
//	MountWish, Outcome, SnapshotOrder: MountRef, ExitInfo, SnapshotRequest
var replaced = map[string]string{
	"cmd/agentvm":               "lesson|machineFlags|patience|[a-z]+Patience|teach|tell|tell[A-Z].*",
	"egress":                    "judge|newJudge|knock|surroundings|told",
	"internal/guest/capnprpc":   "except|farewell|inlet|letGo|outlet|pour|told",
	"internal/daemon/confine":   "leastLandlock|most",
	"internal/daemon":           "awaitTold|dismiss|greet|greeting|harden|hurry|judge|MountWish|obey.*|Outcome|patience.*|presence|takeOver|tell|told",
	"internal/daemon/daemonrpc": "SnapshotOrder|tell",
	"internal/storage/disk":     "settle|systemRun|tidy",
	"internal/network/router":   "heldGate|heldNames|newPage|page|told",
	"internal/guest":            "[a-z]*[Pp]atience|admit|beQuiet|confinement|dismiss|keepers|lateRoot|leastEntropy|longestRest|obeySignals|restMonitor|settle|straySignals",
	"internal/guest/guestrpc":   "greet|longestPause|passes|told",
	"internal/test/leaktest":    "patience",
	"internal/machine":          "apart|behindSlice|comesBack|delivery|earn|grant[A-Z]?.*|heat|JIT_(APART|HEAT|LATE|STUCK)|late|nobody|NewOwnImage|stranger|stuck|takeOver|vouch.*|wishes",
	"internal/network/preview":  "paced.*|turns|visit",
	"internal/network/reach":    "confinement|entrance",
	"internal/storage/snapshot": "claim|ErrStranger|settle|stranger",
	"vm":                        "arrive|ask|atDesk|bell|confinement|desk|divide|drift|endOwned|entrance|gather.*|goesOn|greet|greetErr|greetTime|hangUp|heldGate|heldNames|keepBase|layBase|meet|newDesk|newPage|offspring|openUpper|outlast|owned|patience|patient|personalStart|photo|photograph.*|rehearse|silence|startTwice|upper[A-Z]?.*|warmUps",
}

// oldIdentifiers must not come back in any folder.
const oldIdentifiers = "fewest[A-Z].*|most[A-Z].*|rests"

// oldPhrases must not come back in comments, help texts, errors and documents. A comment that wraps is one line.
var oldPhrases = regexp.MustCompile(`(?i)\b(` + strings.Join([]string{
	"but for", "goes on", `go on\b`, "in vain", "nobody", "(is|are|was|were|be|been) told", "somebody", "this computer",
	// "of the guest's memory" is plain English, "a frame of the guest's" is not.
	`of (the|a) (guest|host|vm)'s([.,;:)"]|$| (to|that|and|for|has|is|which|where)\b)`,
}, "|") + `)`)

// allowed are words that look like old ones.
var allowed = strings.NewReplacer(
	"nobody.invalid.", "", // a mailbox that does not exist (RFC 2606)
	`"nobody"`, "", // Unix's user
	"http.NoBody", "",
	"nobody:x:65534:65534:nobody:", "", // Unix's user and group in /etc
	"nobody:x:65534:", "",
	"come and go on the other", "",
	"call with restart to go on", "", // what models read, as testdata of tools has it
	"[the file goes on:", "",
	"but for a proxy", "", // "not for a server but for a proxy"
)

// TestWords finds words that docs/jargon.md lists as not to be used, in every folder. Generated files follow their sources, and
// testdata is what others write.
func TestWords(t *testing.T) {
	seen := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && (name == "testdata" || name == "scratch" || name == ".git" || slices.Contains(pending, filepath.ToSlash(path))):
			return filepath.SkipDir
		case d.IsDir():
			seen[filepath.ToSlash(path)] = true
			return nil
		case path == "words_test.go" || filepath.ToSlash(path) == "docs/jargon.md": // the lists themselves
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || generated.Match(text) {
			return err
		}
		for _, word := range oldWords(filepath.Ext(path), string(text), replacedIn(filepath.ToSlash(path))) {
			t.Errorf("%s: %q: docs/jargon.md, or the comment of replaced, says what to write in its place", path, word)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for folder := range replaced {
		if !seen[folder] {
			t.Errorf("replaced names %s, which was not found", folder)
		}
	}
}

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// pending are the folders that do not follow docs/jargon.md yet.
var pending = []string{"integration/kubernetes/cluster"}

// replacedIn matches the identifiers that must not come back in a file.
func replacedIn(path string) *regexp.Regexp {
	all := []string{oldIdentifiers}
	for folder, identifiers := range replaced {
		if strings.HasPrefix(path, folder+"/") {
			all = append(all, identifiers)
		}
	}
	return regexp.MustCompile("^(" + strings.Join(all, "|") + ")$")
}

// oldWords lists the old words in a file's text: phrases anywhere, identifiers in code.
func oldWords(extension, text string, identifiers *regexp.Regexp) (found []string) {
	switch extension {
	case ".go", ".c", ".h":
		var s scanner.Scanner // C's tokens are near enough to Go's
		s.Init(strings.NewReader(text))
		s.Error = func(*scanner.Scanner, string) {}
		for token := s.Scan(); token != scanner.EOF; token = s.Scan() {
			if token == scanner.Ident && identifiers.MatchString(s.TokenText()) {
				found = append(found, s.TokenText())
			}
		}
	case ".capnp", ".css", ".html", ".js", ".ld", ".md", ".mjs", ".proto", ".py", ".s", ".S", ".sh", ".tbl", ".ts", ".txtar", ".yaml", ".yml", "":
	default:
		return nil
	}
	return append(found, oldPhrases.FindAllString(allowed.Replace(unwrapped(text)), -1)...)
}

var wrap = regexp.MustCompile(`[ \t]*\n[ \t]*(?:(?://|#|\*)[ \t]*)?`)

// unwrapped joins the lines of comments and paragraphs, so that a phrase with a line end inside is found.
func unwrapped(text string) string { return strings.TrimSpace(wrap.ReplaceAllString(text, " ")) }

// TestOldWords shows that TestWords finds what it is for, and nothing else.
func TestOldWords(t *testing.T) {
	identifiers := replacedIn("internal/test/leaktest/leaktest.go")
	for _, test := range []struct{ name, extension, text, want string }{
		{"identifier", ".go", "package p\n\nvar patience = maxStreams", "patience"},
		{"prefix", ".go", "package p\n\nconst mostStreams = 1", "mostStreams"},
		{"a part of an identifier", ".go", "package p\n\nvar patiences, almostAll, utmost int", ""},
		{"a word in a comment is no identifier", ".go", "package p\n\n// jumps reach it on arrival\nvar p int", ""},
		{"identifier in C", ".c", "#include <stdint.h>\nstatic uint32_t patience(void) { return 0; }", "patience"},
		{"phrase in a comment", ".go", "package p\n\n// The guest goes on.\nvar p int", "goes on"},
		{"phrase over a line end", ".c", "// A page that\n// is\n// told.\n", "is told"},
		{"phrase in a help text", ".go", "package p\n\nconst help = \"reads files of this computer\"", "this computer"},
		{"document", ".md", "What Nobody\nneeds", "Nobody"},
		{"schema", ".capnp", "# The guest\n# goes on.\nstruct Frame {}", "goes on"},
		{"page", ".html", "<p>what somebody\nneeds</p>", "somebody"},
		{"possessive", ".go", "package p\n\n// a frame of the guest's, or of\n// the host's\n", "of the guest's,|of the host's"},
		{"plain possessive", ".go", "package p\n\n// the end of the guest's memory, which everybody has told; nobodies\n", ""},
		{"the beginning of a word", ".md", "Arrows go one way.", ""},
		{"not text", ".wasm", "goes on", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := strings.Join(oldWords(test.extension, test.text, identifiers), "|"); strings.TrimSpace(got) != test.want {
				t.Errorf("found %q, want %q", got, test.want)
			}
		})
	}
}

package protect

import (
	"slices"
	"strings"
)

// gitFiles are names in a repository's directory that say what git executes, or where else it reads that.
var gitFiles = []string{"config", "config.worktree", "hooks", "commondir", "gitdir"}

// GitParts are the names by which git recognizes a repository's directory, whatever its own name is: HEAD with objects and refs, or HEAD with
// commondir, which says where those are.
var GitParts = []string{"HEAD", "objects", "refs", "commondir"}

// IsGit says whether a name is .git.
func IsGit(name string) bool {
	folded := foldFile(name)
	return folded == ".git" || isShort(folded, ".git")
}

// GitPart is the name of GitParts that a name is, or "".
func GitPart(name string) string {
	folded := foldFile(name)
	for _, part := range GitParts {
		if folded == strings.ToLower(part) || isShort(folded, strings.ToLower(part)) {
			return part
		}
	}
	return ""
}

// isGitFile says whether a name is one of gitFiles.
func isGitFile(name string) bool {
	folded := foldFile(name)
	return slices.ContainsFunc(gitFiles, func(f string) bool { return folded == f || isShort(folded, f) })
}

// Guards says of a path in a repository's directory, slash-separated, whether what is there is protected, and whether a directory there has
// to keep its name because of what is below it. "" is the directory itself.
func Guards(rest string) (file, directory bool) {
	if rest == "" {
		return false, true
	}
	elements := strings.Split(rest, "/")
	if isGitFile(elements[0]) {
		return true, true
	}
	switch first := foldFile(elements[0]); {
	case first == "modules", first == "worktrees", isShort(first, "worktrees"):
		return slices.ContainsFunc(elements[1:], isGitFile), true
	}
	return false, false
}

// A Repository is a directory that is, or may be, a repository's.
type Repository struct {
	Path  string // of the directory; "." is where the path begins
	Rest  string // what follows
	Named bool   // its name is .git; else only a look says whether it is one
}

// Repositories lists the repositories' directories that a slash-separated path may lead through, or to: each .git, and each directory in which the
// path has a name that would be protected there.
func Repositories(path string) (list []Repository) {
	elements := strings.Split(path, "/")
	at := func(i int) string {
		switch {
		case i == 0:
			return "."
		case i == 1 && elements[0] == "":
			return "/"
		}
		return strings.Join(elements[:i], "/")
	}
	for i, element := range elements {
		if IsGit(element) {
			list = append(list, Repository{at(i + 1), strings.Join(elements[i+1:], "/"), true})
		}
		if isGitFile(element) || GitPart(element) != "" {
			list = append(list, Repository{Path: at(i), Rest: strings.Join(elements[i:], "/")})
		}
	}
	return list
}

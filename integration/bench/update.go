//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The lines of a document between which the figures stand. The first may say more.
const (
	figuresBegin = "<!-- figures: begin"
	figuresEnd   = "<!-- figures: end -->"
)

// updateDocuments replaces the figures in the repository's documents by those of this run.
func (r *report) updateDocuments(root string) error {
	about := "\n```\n" + r.about + "load at the end: " + loadAverage() + "\n```\n"
	on := func(page string) (figures []figure) {
		for _, f := range r.figures {
			if f.page == page {
				figures = append(figures, f)
			}
		}
		return figures
	}
	var errs []error
	if mounts := on(mountsPage); len(mounts) > 0 {
		errs = append(errs, updateDocument(filepath.Join(root, "docs", "measurements", mountsPage), table(mounts)+about))
	}
	if len(on("")) > calibrations { // more was measured than the host itself
		errs = append(errs,
			updateDocument(filepath.Join(root, "docs", "measurements", "specification.md"), table(on(""))+about))
	}
	return errors.Join(errs...)
}

func updateDocument(path, figures string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	changed, err := withFigures(string(text), figures)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(changed), 0o644)
}

func withFigures(text, figures string) (string, error) {
	before, rest, found := strings.Cut(text, figuresBegin)
	marker, rest, _ := strings.Cut(rest, "\n")
	_, after, closed := strings.Cut(rest, figuresEnd)
	if !found || !closed {
		return "", fmt.Errorf("no lines %q and %q", figuresBegin, figuresEnd)
	}
	return before + figuresBegin + marker + "\n" + figures + figuresEnd + after, nil
}

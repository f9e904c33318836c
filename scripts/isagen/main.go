// Isagen turns the instruction tables, instructions.tbl of internal/machine/riscv and internal/machine/a64, into tables in C and Go.
//
// Usage: go run ./scripts/isagen (from the repository's root; `go generate ./internal/machine/...` does it)
package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

const (
	tablePath = "internal/machine/riscv/instructions.tbl"
	cPath     = "internal/machine/src/riscv64/instructions.h"
	goPath    = "internal/machine/riscv/table.go"
)

// row is one line of the table.
type row struct {
	name, extension, format, handler string
	mask, match                      uint32
	length                           int // bytes
	expands                          string
}

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	if err := errors.Join(generate(root), generateA64(root)); err != nil {
		fmt.Fprintln(os.Stderr, "isagen:", err)
		os.Exit(1)
	}
}

func generate(root string) error {
	text, err := os.ReadFile(root + "/" + tablePath)
	if err != nil {
		return err
	}
	rows, err := parseLines(string(text), func(extension string, words []string) (string, row, error) {
		r, err := parseRow(words)
		r.extension = extension
		return r.name, r, err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", tablePath, err)
	}
	if err := os.WriteFile(root+"/"+cPath, cHeader(rows), 0o644); err != nil {
		return err
	}
	source, err := goTable(rows)
	if err != nil {
		return err
	}
	return os.WriteFile(root+"/"+goPath, source, 0o644)
}

// parseLines reads a whole table, a row by each call of parse with the row's words and the name of its section; an error names the line.
func parseLines[R any](text string, parse func(section string, words []string) (name string, row R, err error)) ([]R, error) {
	var rows []R
	section := ""
	seen := map[string]bool{}
	for i, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || words[0][0] == '#':
			continue
		case words[0][0] == '[':
			section = strings.Trim(strings.TrimSpace(line), "[]")
			continue
		}
		name, r, err := parse(section, words)
		if err == nil && seen[name] {
			err = fmt.Errorf("%s is there twice", name)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		seen[name] = true
		rows = append(rows, r)
	}
	return rows, nil
}

func parseRow(words []string) (row, error) {
	if len(words) < 4 {
		return row{}, fmt.Errorf("%q needs a name, a format, a handler and fields", strings.Join(words, " "))
	}
	r := row{name: words[0], format: words[1], handler: words[2], length: 4}
	if !strings.ContainsAny(r.handler[:1], ".~@") {
		return row{}, fmt.Errorf("%s: no handler %q", r.name, r.handler)
	}
	if !strings.Contains(words[3], "=") {
		return parseCompressed(r, words[3:])
	}
	for _, field := range words[3:] {
		if err := r.constrain(field); err != nil {
			return row{}, err
		}
	}
	return r, nil
}

func parseCompressed(r row, words []string) (row, error) {
	if len(words) != 2 || len(words[0]) != 16 {
		return row{}, fmt.Errorf("%s needs a 16-bit pattern and an expansion", r.name)
	}
	r.length, r.expands = 2, words[1]
	for i, c := range words[0] {
		bit := uint32(1) << (15 - i)
		switch c {
		case '1':
			r.match |= bit
			r.mask |= bit
		case '0':
			r.mask |= bit
		case '.':
		default:
			return row{}, fmt.Errorf("%s: pattern has %q", r.name, c)
		}
	}
	return r, nil
}

// fields are the names that a 32-bit row may constrain: the highest and lowest bit of each.
var fields = map[string][2]int{
	"op": {6, 0}, "rd": {11, 7}, "f3": {14, 12}, "rs1": {19, 15}, "rs2": {24, 20}, "f2": {26, 25},
	"f7": {31, 25}, "f6": {31, 26}, "f5": {31, 27}, "f12": {31, 20},
}

func (r *row) constrain(field string) error {
	name, text, _ := strings.Cut(field, "=")
	bits, ok := fields[name]
	if !ok {
		return fmt.Errorf("%s: no field %q", r.name, name)
	}
	value, err := strconv.ParseUint(text, 0, 32)
	width := bits[0] - bits[1] + 1
	if err != nil || value >= 1<<width {
		return fmt.Errorf("%s: %q does not fit %d bits", r.name, field, width)
	}
	r.mask |= (1<<width - 1) << bits[1]
	r.match |= uint32(value) << bits[1]
	return nil
}

// symbol is the row's name as part of a C identifier.
func symbol(name string) string {
	return strings.ToUpper(strings.NewReplacer(".", "_", "@", "GROUP_").Replace(name))
}

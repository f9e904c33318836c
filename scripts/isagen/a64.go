package main

import (
	"bytes"
	"fmt"
	"go/format"
	"os"
	"strconv"
	"strings"
)

const (
	a64TablePath = "internal/machine/a64/instructions.tbl"
	a64GoPath    = "internal/machine/a64/table.go"
	a64CPath     = "internal/machine/src/arm64/instructions.h"
)

// bits are values that some bits of an instruction have.
type bits struct{ mask, match uint32 }

// a64Row is one line of the A64 table.
type a64Row struct {
	name, extension, format, group string
	bits
	except []bits
}

func generateA64(root string) error {
	text, err := os.ReadFile(root + "/" + a64TablePath)
	if err != nil {
		return err
	}
	rows, err := parseLines(string(text), func(extension string, words []string) (string, a64Row, error) {
		r, err := parseA64(words)
		r.extension = extension
		return r.name, r, err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", a64TablePath, err)
	}
	source, err := a64GoTable(rows)
	if err != nil {
		return err
	}
	if err := os.WriteFile(root+"/"+a64CPath, a64CHeader(rows), 0o644); err != nil {
		return err
	}
	return os.WriteFile(root+"/"+a64GoPath, source, 0o644)
}

func parseA64(words []string) (a64Row, error) {
	if len(words) < 4 || len(words[3]) != 32 {
		return a64Row{}, fmt.Errorf("%q needs a name, a format, a group and a pattern of 32 bits", strings.Join(words, " "))
	}
	r := a64Row{name: words[0], format: words[1], group: words[2]}
	places := make(map[rune][]int) // of the bits of each field, from the highest
	for i, c := range words[3] {
		switch c {
		case '0', '1':
			r.set(31-i, c)
		default:
			places[c] = append(places[c], 31-i)
		}
	}
	for _, word := range words[4:] {
		except, err := parseException(word, places)
		if err != nil {
			return a64Row{}, fmt.Errorf("%s: %w", r.name, err)
		}
		r.except = append(r.except, except)
	}
	return r, nil
}

func (b *bits) set(place int, digit rune) {
	b.mask |= 1 << place
	if digit == '1' {
		b.match |= 1 << place
	}
}

func parseException(word string, places map[rune][]int) (bits, error) {
	var b bits
	list, ok := strings.CutPrefix(word, "!")
	for _, condition := range strings.Split(list, ",") {
		field, value, equals := strings.Cut(condition, "=")
		var at []int
		if len(field) == 1 {
			at = places[rune(field[0])]
		}
		if len(value) != len(at) || strings.Trim(value, "01x") != "" {
			n, err := strconv.ParseUint(value, 10, len(at))
			if err != nil {
				ok = false
			}
			value = fmt.Sprintf("%0*b", len(at), n)
		}
		if !ok || !equals || len(at) == 0 || len(value) != len(at) {
			return bits{}, fmt.Errorf("%q is no exception", word)
		}
		for i, digit := range value {
			if digit != 'x' {
				b.set(at[i], digit)
			}
		}
	}
	return b, nil
}

func a64GoTable(rows []a64Row) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString(generatedFrom(a64TablePath) + "\npackage a64\n\n// Table has a row for each instruction that the machine executes, in decode order.\nvar Table = []Instruction{\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "{Name: %q, Extension: %q, Format: Format%s, Group: %q, Bits: Bits{0x%08x, 0x%08x}", r.name, r.extension, r.format, r.group, r.mask, r.match)
		if len(r.except) > 0 {
			b.WriteString(", Except: []Bits{")
			for _, e := range r.except {
				fmt.Fprintf(&b, "{0x%08x, 0x%08x},", e.mask, e.match)
			}
			b.WriteString("}")
		}
		b.WriteString("},\n")
	}
	b.WriteString("}\n\n// Operand formats; instructions.tbl has their fields.\nconst (\n")
	for _, f := range distinct(rows, func(r a64Row) string { return r.format }) {
		fmt.Fprintf(&b, "Format%s Format = %q\n", f, f)
	}
	b.WriteString(")\n")
	return format.Source(b.Bytes())
}

// a64CHeader gives the decoder of the machine the rows, and the numbers of those that words with each value of bits 28 to 21 can be.
func a64CHeader(rows []a64Row) []byte {
	var b bytes.Buffer
	b.WriteString(generatedFrom(a64TablePath) + "#ifndef AGENTVM_INSTRUCTIONS_H\n#define AGENTVM_INSTRUCTIONS_H\n\n#include <stdint.h>\n\n")
	b.WriteString("// The number of an instruction is that of its row.\n")
	writeEnum(&b, "instruction_id", "ID_", distinct(rows, func(r a64Row) string { return r.name }))
	writeEnum(&b, "group", "GROUP_", distinct(rows, func(r a64Row) string { return r.group }))
	writeEnum(&b, "format", "FORMAT_", distinct(rows, func(r a64Row) string { return r.format }))
	b.WriteString("struct instruction_bits {\n    uint32_t mask, match;\n};\n\n")
	b.WriteString("// A word is the row's instruction when it has `bits` and none of `excepts` exceptions from `except` on.\n")
	b.WriteString("struct instruction_row {\n    struct instruction_bits bits;\n    uint16_t except;\n    uint8_t excepts, group, format;\n};\n\n")
	var exceptions []bits
	b.WriteString("static const struct instruction_row instruction_rows[] = {\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "    {{0x%08x, 0x%08x}, %d, %d, GROUP_%s, FORMAT_%s},\n", r.mask, r.match, len(exceptions), len(r.except), symbol(r.group), r.format)
		exceptions = append(exceptions, r.except...)
	}
	b.WriteString("};\n\nstatic const struct instruction_bits instruction_exceptions[] = {\n")
	for _, e := range exceptions {
		fmt.Fprintf(&b, "    {0x%08x, 0x%08x},\n", e.mask, e.match)
	}
	b.WriteString("};\n\n")
	starts, list := []int{0}, []int{}
	for key := range uint32(256) {
		for i, r := range rows {
			if mask := r.mask >> 21 & 255; key&mask == r.match>>21&mask {
				list = append(list, i)
			}
		}
		starts = append(starts, len(list))
	}
	writeNumbers(&b, "uint16_t", "bucket_start", starts)
	writeNumbers(&b, "uint16_t", "bucket_rows", list)
	b.WriteString("#endif\n")
	return b.Bytes()
}

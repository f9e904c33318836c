package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
)

func (s schema) python() string {
	switch {
	case s.Ref != "":
		return s.reference()
	case s.Type == "array":
		return "list[" + s.Items.python() + "]"
	case s.Type == "object" && s.Values != nil:
		return "dict[str, " + s.Values.python() + "]"
	}
	return map[string]string{"integer": "int", "string": "str", "boolean": "bool", "number": "float"}[s.Type]
}

func (d document) python() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\"\"\"%s\"\"\"\n\nfrom __future__ import annotations\n\nfrom typing import Any, Iterator, TypedDict\n", generated)
	for _, name := range slices.Sorted(maps.Keys(d.Components.Schemas)) {
		s := d.Components.Schemas[name]
		fields := slices.Sorted(maps.Keys(s.Properties))
		if slices.Contains(fields, "from") { // a keyword is no name of a class's
			var list []string
			for _, field := range fields {
				list = append(list, fmt.Sprintf("%q: %s", field, s.Properties[field].python()))
			}
			fmt.Fprintf(&b, "\n\n%s = TypedDict(%q, {%s})\n", name, name, strings.Join(list, ", "))
			continue
		}
		optional := slices.DeleteFunc(slices.Clone(fields), func(field string) bool { return slices.Contains(s.Required, field) })
		base := "TypedDict"
		if len(optional) > 0 && len(optional) < len(fields) {
			base = "_" + name
			s.pythonClass(&b, base, "TypedDict", s.Required)
		}
		if len(optional) > 0 {
			s.pythonClass(&b, name, base+", total=False", optional)
		} else {
			s.pythonClass(&b, name, base, fields)
		}
	}
	b.WriteString("\n\nclass Operations:\n    \"\"\"The operations of the server. _call makes one.\"\"\"\n\n" +
		"    def _call(self, method: str, path: str, parameters: list[str], query: dict[str, Any], body: Any, answer: str) -> Any:\n        raise NotImplementedError\n")
	for _, c := range d.calls() {
		c.python(&b)
	}
	return b.String()
}

func (s schema) pythonClass(b *strings.Builder, name, base string, fields []string) {
	fmt.Fprintf(b, "\n\nclass %s(%s):\n", name, base)
	for _, field := range slices.Sorted(slices.Values(fields)) {
		p := s.Properties[field]
		fmt.Fprintf(b, "    %s: %s", field, p.python())
		if p.Description != "" {
			fmt.Fprintf(b, "  # %s", p.Description)
		}
		b.WriteString("\n")
	}
	if len(fields) == 0 {
		b.WriteString("    pass\n")
	}
}

// python writes a method.
func (c call) python(b *strings.Builder) {
	parameters, query := []string{"self"}, []string{}
	for _, name := range c.inPath {
		parameters = append(parameters, name+": str")
	}
	switch {
	case c.rawIn:
		parameters = append(parameters, "body: bytes")
	case c.in != nil:
		parameters = append(parameters, "body: "+c.in.python())
	}
	if len(c.query) > 0 {
		parameters = append(parameters, "*")
	}
	for _, name := range c.query {
		name, optional := strings.CutSuffix(name, "?")
		word := name
		if name == "from" { // a keyword
			word = "from_"
		}
		if optional {
			parameters = append(parameters, word+": str | int | float | None = None")
		} else {
			parameters = append(parameters, word+": str")
		}
		query = append(query, fmt.Sprintf("%q: %s", name, word))
	}
	out, answer := "None", "none"
	switch {
	case len(c.Events) > 0:
		out, answer = "Iterator[tuple[str, Any]]", "events"
	case c.rawOut:
		out, answer = "bytes", "bytes"
	case !c.none:
		out, answer = c.out.python(), "json"
	}
	given := "None"
	if c.in != nil || c.rawIn {
		given = "body"
	}
	fmt.Fprintf(b, "\n    def %s(%s) -> %s:\n        \"\"\"%s.\"\"\"\n", snake(c.ID), strings.Join(parameters, ", "), out, c.Summary)
	fmt.Fprintf(b, "        return self._call(%q, %q, [%s], {%s}, %s, %q)\n", c.method, c.path, strings.Join(c.inPath, ", "), strings.Join(query, ", "), given, answer)
}

// snake writes getVmsOne as get_vms_one.
func snake(id string) string {
	var b strings.Builder
	for _, r := range id {
		if unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

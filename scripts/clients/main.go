// Command clients writes the types of the clients of agentvm serve, from the document that the server has at /openapi.json:
//
//	go run ./scripts/clients [DIR]
//
// writes clients/typescript/types.ts and clients/python/agentvm/operations.py below DIR, the root of the repository.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"agentvm/internal/api/serve"
)

func main() {
	flag.Parse()
	root := "."
	if flag.NArg() > 0 {
		root = flag.Arg(0)
	}
	files, err := generate()
	for name, text := range files {
		if err == nil {
			err = os.WriteFile(filepath.Join(root, name), []byte(text), 0o644)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "clients:", err)
		os.Exit(1)
	}
}

// document is what the clients need of an OpenAPI document.
type document struct {
	Paths      map[string]map[string]operation `json:"paths"`
	Components struct {
		Schemas map[string]schema `json:"schemas"`
	} `json:"components"`
}

type operation struct {
	ID         string `json:"operationId"`
	Summary    string `json:"summary"`
	Parameters []struct {
		Name        string `json:"name"`
		In          string `json:"in"`
		Description string `json:"description"`
		Required    bool   `json:"required"`
	} `json:"parameters"`
	Body      body              `json:"requestBody"`
	Responses map[string]body   `json:"responses"`
	Events    map[string]schema `json:"x-events"`
}

type body struct {
	Content map[string]struct {
		Schema *schema `json:"schema"` // nil: bytes
	} `json:"content"`
}

type schema struct {
	Ref         string            `json:"$ref"`
	Type        string            `json:"type"`
	Description string            `json:"description"`
	Items       *schema           `json:"items"`
	Values      *schema           `json:"additionalProperties"`
	Properties  map[string]schema `json:"properties"`
	Required    []string          `json:"required"`
}

// generate returns the files.
func generate() (map[string]string, error) {
	text, err := serve.Document("")
	if err != nil {
		return nil, err
	}
	var d document
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, err
	}
	return map[string]string{
		"clients/typescript/types.ts":          d.typeScript(),
		"clients/python/agentvm/operations.py": d.python(),
	}, nil
}

// call is one operation, as both languages need it.
type call struct {
	operation
	method, path        string
	inPath, query       []string // names; those of query that need not be there end with "?"
	in, out             *schema
	rawIn, rawOut, none bool // bytes instead of JSON; nothing is answered
}

// calls are the operations that clients make, in order. A WebSocket is none of them.
func (d document) calls() (list []call) {
	for _, path := range slices.Sorted(maps.Keys(d.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(d.Paths[path])) {
			c := call{operation: d.Paths[path][method], method: strings.ToUpper(method), path: path, none: true}
			if _, socket := c.Responses["101"]; socket {
				continue
			}
			for _, p := range c.Parameters {
				switch {
				case p.In == "path":
					c.inPath = append(c.inPath, p.Name)
				case p.Required:
					c.query = append(c.query, p.Name)
				default:
					c.query = append(c.query, p.Name+"?")
				}
			}
			for _, content := range c.Body.Content {
				c.in, c.rawIn = content.Schema, content.Schema == nil
			}
			for status, answer := range c.Responses {
				for _, content := range answer.Content {
					if status != "default" {
						c.out, c.rawOut, c.none = content.Schema, content.Schema == nil, false
					}
				}
			}
			list = append(list, c)
		}
	}
	return list
}

// reference is the name of the type that a schema refers to.
func (s schema) reference() string { return s.Ref[strings.LastIndex(s.Ref, "/")+1:] }

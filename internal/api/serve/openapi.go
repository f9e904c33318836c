package serve

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// pathParameter is one of a path: {vm}, for example.
var pathParameter = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\{([a-z]+)\}`) })

// Document is the document that a server of a version has at /openapi.json.
func Document(version string) ([]byte, error) { return openAPI(new(Server).allRoutes(), version) }

// schema is a JSON Schema, as OpenAPI has it.
type schema = map[string]any

// openAPI is the document of routes (OpenAPI 3.1.1).
func openAPI(routes []route, version string) ([]byte, error) {
	types := schemas{}
	paths := map[string]map[string]any{}
	for _, r := range routes {
		for _, value := range slices.Concat(r.types, slices.Collect(maps.Values(r.events))) {
			types.of(reflect.TypeOf(value))
		}
		if paths[r.path] == nil {
			paths[r.path] = map[string]any{}
		}
		paths[r.path][strings.ToLower(r.method)] = types.operation(r)
	}
	types.of(reflect.TypeFor[Problem]())
	return json.MarshalIndent(map[string]any{
		"openapi": "3.1.1", "info": map[string]any{"title": "agentvm", "version": version},
		"servers":  []any{map[string]any{"url": "/", "description": "the server that this document comes from"}},
		"security": []any{map[string]any{"key": []any{}}},
		"components": map[string]any{
			"securitySchemes": map[string]any{"key": map[string]any{"type": "http", "scheme": "bearer"}}, "schemas": types,
		},
		"paths": paths,
	}, "", "  ")
}

// schemas are those of named types.
type schemas map[string]schema

func (s schemas) operation(r route) map[string]any {
	operation := map[string]any{"summary": r.summary, "operationId": operationID(r)}
	var parameters []any
	for _, match := range pathParameter().FindAllStringSubmatch(r.path, -1) {
		parameters = append(parameters, map[string]any{"name": match[1], "in": "path", "required": true, "schema": schema{"type": "string"}})
	}
	for _, p := range r.query {
		parameters = append(parameters, map[string]any{
			"name": p.name, "in": "query", "description": p.usage, "required": p.required, "schema": schema{"type": "string"},
		})
	}
	if parameters != nil {
		operation["parameters"] = parameters
	}
	if body := s.content(r.in, r.rawIn); body != nil {
		operation["requestBody"] = map[string]any{"content": body}
	}
	answer := map[string]any{"description": http.StatusText(r.status)}
	if len(r.events) > 0 {
		data := map[string]any{}
		for name, value := range r.events {
			data[name] = s.of(reflect.TypeOf(value))
		}
		operation["x-events"] = data // what OpenAPI 3.1 has no word for: the data of server-sent events
	}
	if body := s.content(r.out, r.rawOut); body != nil {
		answer["content"] = body
	}
	operation["responses"] = map[string]any{
		fmt.Sprint(r.status): answer,
		"default": map[string]any{
			"description": "an error (RFC 9457)",
			"content":     map[string]any{"application/problem+json": map[string]any{"schema": reference("Problem")}},
		},
	}
	return operation
}

// operationID names an operation by its method and path: getVmsJobsOutput.
func operationID(r route) string {
	id := strings.ToLower(r.method)
	for part := range strings.SplitSeq(strings.TrimPrefix(r.path, "/v1/"), "/") {
		if !strings.HasPrefix(part, "{") {
			id += strings.ToUpper(part[:1]) + part[1:]
		} else if strings.HasSuffix(r.path, part) {
			id += "One"
		}
	}
	return id
}

func (s schemas) content(t reflect.Type, raw string) map[string]any {
	switch {
	case raw != "":
		return map[string]any{raw: map[string]any{}}
	case t == nil:
		return nil
	}
	return map[string]any{"application/json": map[string]any{"schema": s.of(t)}}
}

func reference(name string) schema { return schema{"$ref": "#/components/schemas/" + name} }

// of returns a type's schema; that of a struct is a reference. The descriptions of fields are their tags jsonschema.
func (s schemas) of(t reflect.Type) schema {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return schema{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[json.RawMessage]():
		return schema{} // anything
	case t == reflect.TypeFor[[]byte]():
		return schema{"type": "string", "contentEncoding": "base64"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.of(t.Elem())
	case reflect.Slice:
		return schema{"type": "array", "items": s.of(t.Elem())}
	case reflect.Map:
		return schema{"type": "object", "additionalProperties": s.of(t.Elem())}
	case reflect.Struct:
		if s[t.Name()] == nil {
			s[t.Name()] = schema{} // for a type that has itself in it
			s[t.Name()] = s.object(t)
		}
		return reference(t.Name())
	case reflect.String:
		return schema{"type": "string"}
	case reflect.Bool:
		return schema{"type": "boolean"}
	case reflect.Float64:
		return schema{"type": "number"}
	}
	return schema{"type": "integer"}
}

func (s schemas) object(t reflect.Type) schema {
	properties, required := map[string]any{}, []string{}
	for _, field := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" {
			continue // embedded: its own fields follow
		}
		property := s.of(field.Type)
		if text := field.Tag.Get("jsonschema"); text != "" {
			property["description"] = text
		}
		properties[name] = property
		if options == "" {
			required = append(required, name)
		}
	}
	return schema{"type": "object", "properties": properties, "required": required}
}

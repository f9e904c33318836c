package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
)

// route is one operation of the API, and what the document says about it.
type route struct {
	method, path, summary string
	in, out               reflect.Type // bodies in JSON; nil: none, or raw ones
	rawIn, rawOut         string       // media types of bodies that are no JSON
	query                 []parameter
	status                int
	stream                bool // it may last, so that it has no slot
	serve                 http.HandlerFunc
}

// parameter is one of a query.
type parameter struct {
	name, usage string
	required    bool
}

// call makes a route of a function from a body in JSON to an answer in JSON. In and Out are struct{} where there is none.
func call[In, Out any](method, path, summary string, do func(r *http.Request, in In) (Out, error)) route {
	r := route{method: method, path: path, summary: summary, status: http.StatusOK}
	none := reflect.TypeFor[struct{}]()
	if t := reflect.TypeFor[In](); t != none {
		r.in = t
	}
	if t := reflect.TypeFor[Out](); t != none {
		r.out = t
	} else {
		r.status = http.StatusNoContent
	}
	if method == http.MethodPost && r.out != nil && !strings.Contains(path, "}/") {
		r.status = http.StatusCreated
	}
	status, hasBody := r.status, r.in != nil
	r.serve = func(w http.ResponseWriter, request *http.Request) {
		var in In
		if hasBody {
			if err := readJSON(w, request, &in); err != nil {
				writeProblem(w, err)
				return
			}
		}
		out, err := do(request, in)
		if err != nil {
			writeProblem(w, err)
			return
		}
		if status == http.StatusNoContent {
			w.WriteHeader(status)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(out)
	}
	return r
}

// with adds parameters of the query.
func (r route) with(list ...parameter) route {
	r.query = list
	return r
}

// readJSON reads a request's body, which has to be there soon. An empty one is an empty object.
func readJSON(w http.ResponseWriter, r *http.Request, into any) error {
	body, err := readBody(w, r)
	if err == nil && len(body) > 0 {
		d := json.NewDecoder(bytes.NewReader(body))
		d.DisallowUnknownFields()
		if err = d.Decode(into); err == nil {
			if _, err = d.Token(); err == nil {
				err = errors.New("there is something after the object")
			} else if errors.Is(err, io.EOF) {
				err = nil
			}
		}
	}
	if err == nil {
		return nil
	}
	if p := problemOf(err); p.Status != http.StatusUnprocessableEntity {
		return p
	}
	return invalid("the body is no JSON as wanted: %v", err)
}

// readBody reads a body that is to be there soon. After a failure the deadline stays, because the server reads the rest before it answers.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTime))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		_ = control.SetReadDeadline(time.Time{})
	}
	return body, err
}

// Path parameters: {vm} and so on.
var pathParameter = regexp.MustCompile(`\{([a-z]+)\}`)

// openAPI is the document of the routes (OpenAPI 3.1.1).
func (s *Server) openAPI() ([]byte, error) {
	paths := map[string]map[string]any{}
	problem, err := schemaOf(reflect.TypeFor[Problem]())
	if err != nil {
		return nil, err
	}
	for _, r := range s.routes {
		operation := map[string]any{"summary": r.summary, "operationId": operationID(r)}
		var parameters []any
		for _, match := range pathParameter.FindAllStringSubmatch(r.path, -1) {
			parameters = append(parameters, map[string]any{"name": match[1], "in": "path", "required": true, "schema": map[string]any{"type": "string"}})
		}
		for _, p := range r.query {
			parameters = append(parameters, map[string]any{
				"name": p.name, "in": "query", "description": p.usage, "required": p.required, "schema": map[string]any{"type": "string"},
			})
		}
		if parameters != nil {
			operation["parameters"] = parameters
		}
		if body, err := content(r.in, r.rawIn); err != nil {
			return nil, fmt.Errorf("%s %s: %w", r.method, r.path, err)
		} else if body != nil {
			operation["requestBody"] = map[string]any{"content": body}
		}
		answer := map[string]any{"description": http.StatusText(r.status)}
		if body, err := content(r.out, r.rawOut); err != nil {
			return nil, fmt.Errorf("%s %s: %w", r.method, r.path, err)
		} else if body != nil {
			answer["content"] = body
		}
		operation["responses"] = map[string]any{
			fmt.Sprint(r.status): answer,
			"default": map[string]any{
				"description": "an error (RFC 9457)", "content": map[string]any{"application/problem+json": map[string]any{"schema": problem}},
			},
		}
		if paths[r.path] == nil {
			paths[r.path] = map[string]any{}
		}
		paths[r.path][strings.ToLower(r.method)] = operation
	}
	return json.MarshalIndent(map[string]any{
		"openapi": "3.1.1", "info": map[string]any{"title": "agentvm", "version": s.options.Version},
		"security":   []any{map[string]any{"key": []any{}}},
		"components": map[string]any{"securitySchemes": map[string]any{"key": map[string]any{"type": "http", "scheme": "bearer"}}},
		"paths":      paths,
	}, "", "  ")
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

func content(t reflect.Type, raw string) (map[string]any, error) {
	switch {
	case raw != "":
		return map[string]any{raw: map[string]any{}}, nil
	case t == nil:
		return nil, nil
	}
	schema, err := schemaOf(t)
	return map[string]any{"application/json": map[string]any{"schema": schema}}, err
}

func schemaOf(t reflect.Type) (*jsonschema.Schema, error) {
	return jsonschema.ForType(t, &jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[time.Time](): {Type: "string", Format: "date-time"},
	}})
}

// lasting is the context of a request that also ends with the server.
func (s *Server) lasting(r *http.Request) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

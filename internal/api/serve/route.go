package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"
)

// route is one operation of the API, and what the document says about it.
type route struct {
	method, path, summary string
	in, out               reflect.Type   // bodies in JSON; nil: none, or raw ones
	rawIn, rawOut         string         // media types of bodies that are no JSON
	types                 []any          // values of further types that the document has
	events                map[string]any // of text/event-stream: values of the types of their data, by name
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
				WriteProblem(w, err)
				return
			}
		}
		out, err := do(request, in)
		if err != nil {
			WriteProblem(w, err)
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

// checkQuery refuses what the operation would not use: a parameter whose name is not known, or that is there twice.
func (r route) checkQuery(text string) error {
	values, err := url.ParseQuery(text)
	if err != nil {
		return invalid("the query: %v", err)
	}
	for name, list := range values {
		if !slices.ContainsFunc(r.query, func(p parameter) bool { return p.name == name }) {
			return InField(name, invalid("%s %s has no parameter %.100q; GET /openapi.json has what there is", r.method, r.path, name))
		}
		if len(list) > 1 {
			return InField(name, invalid("the parameter %s is there %d times", name, len(list)))
		}
	}
	return nil
}

// readJSON reads a request's body, which has to be there soon. An empty one is an empty object.
func readJSON(w http.ResponseWriter, r *http.Request, into any) error {
	body, err := readBody(w, r)
	if err == nil && len(body) > 0 {
		return strictJSON(body, into)
	}
	if err == nil {
		return nil
	}
	if p := problemOf(err); p.Status != http.StatusUnprocessableEntity {
		return p
	}
	return invalid("read the body: %v", err)
}

// strictJSON reads one value that has no fields which are not known.
func strictJSON(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil {
		if _, err = d.Token(); err == nil {
			err = errors.New("there is something after the object")
		} else if errors.Is(err, io.EOF) {
			return nil
		}
	}
	return invalid("it is no JSON as wanted: %v", err)
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

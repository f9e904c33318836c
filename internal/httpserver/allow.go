package httpserver

import (
	"net/http"
	"slices"
	"strings"
)

// Allowed returns the methods that a mux takes at a request's path, for the header Allow; "" when there is nothing at that path. It is for muxes
// that have a handler for "/", which net/http takes for one of every path: without that one net/http answers 405 itself. rest are further patterns of
// such handlers.
func Allowed(mux *http.ServeMux, r *http.Request, rest ...string) string {
	var methods []string
	for _, method := range []string{
		http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions,
	} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := mux.Handler(other); pattern != "" && pattern != "/" && !slices.Contains(rest, pattern) {
			methods = append(methods, method)
		}
	}
	return strings.Join(methods, ", ")
}

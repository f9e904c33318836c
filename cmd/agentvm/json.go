package main

import (
	"encoding/json"
	"io"
)

// printJSON prints one value on one line.
func printJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

package tomlfile

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Quote writes a text as TOML does, in quotes.
func Quote(text string) string {
	var b strings.Builder
	encoder := json.NewEncoder(&b) // whose escapes are among TOML's
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // a text can be encoded
	return strings.ReplaceAll(strings.TrimSuffix(b.String(), "\n"), "\x7f", `\u007f`)
}

// Value writes a value: a text, a number, a bool, or a list of those.
func Value(v any) string {
	switch v := v.(type) {
	case string:
		return Quote(v)
	case []string:
		return list(v)
	case []int:
		return list(v)
	}
	return fmt.Sprint(v)
}

func list[T any](items []T) string {
	texts := make([]string, len(items))
	for i, item := range items {
		texts[i] = Value(item)
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// Package debugenv reads AGENTVM_DEBUG: words separated by commas, with optional spaces.
package debugenv

import (
	"os"
	"slices"
	"strings"
)

// Variable is the name of the environment variable.
const Variable = "AGENTVM_DEBUG"

// All returns the words that the variable has now. One of them may be empty.
func All() []string {
	words := strings.Split(os.Getenv(Variable), ",")
	for i, word := range words {
		words[i] = strings.TrimSpace(word)
	}
	return words
}

// Has reports whether the variable has a word now.
func Has(word string) bool { return slices.Contains(All(), word) }

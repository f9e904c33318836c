// Package debugword reads AGENTVM_DEBUG: words with commas between them, and maybe spaces around them.
package debugword

import (
	"os"
	"slices"
	"strings"
)

// Variable is the name of the environment's variable.
const Variable = "AGENTVM_DEBUG"

// All are the words that the variable has now, the empty one maybe among them.
func All() []string {
	words := strings.Split(os.Getenv(Variable), ",")
	for i, word := range words {
		words[i] = strings.TrimSpace(word)
	}
	return words
}

// Has tells whether the variable has a word now.
func Has(word string) bool { return slices.Contains(All(), word) }

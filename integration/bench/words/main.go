// Command words is the Go program that the bench runs: it counts the words of a text that it makes, with maps, sorting, goroutines and garbage.
package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

func main() {
	const parts, length = 8, 20000
	counts := make([]map[string]int, parts)
	var wait sync.WaitGroup
	for i := range parts {
		wait.Go(func() {
			counts[i] = map[string]int{}
			for _, word := range strings.Fields(text(uint32(i+1), length)) {
				counts[i][word]++
			}
		})
	}
	wait.Wait()
	sum := map[string]int{}
	for _, part := range counts {
		for word, n := range part {
			sum[word] += n
		}
	}
	words := make([]string, 0, len(sum))
	for word := range sum {
		words = append(words, word)
	}
	slices.SortFunc(words, func(a, b string) int {
		if sum[a] != sum[b] {
			return sum[b] - sum[a]
		}
		return strings.Compare(a, b)
	})
	for _, word := range words[:5] {
		fmt.Println(word, sum[word])
	}
}

// text is words of one to four letters, from a linear congruential generator.
func text(seed uint32, words int) string {
	var b strings.Builder
	next := func(n uint32) uint32 { seed = seed*1664525 + 1013904223; return seed >> 16 % n }
	for range words {
		for range 1 + next(4) {
			b.WriteByte('a' + byte(next(26)))
		}
		b.WriteByte(' ')
	}
	return b.String()
}

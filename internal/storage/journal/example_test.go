package journal_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync"

	"agentvm/internal/storage/journal"
)

func Example() {
	dir, err := os.MkdirTemp("", "journal")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := journal.Create(filepath.Join(dir, "journal"), journal.Config{Head: 12, Tail: 8})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	var program sync.WaitGroup
	program.Go(func() {
		for i := range 5 {
			l.Append(journal.Stdout, fmt.Appendf(nil, "line %d\n", i))
		}
		l.Append(journal.Stderr, []byte("bye\n"))
		l.Finish([]byte("exit 0"))
	})
	program.Wait() // only so that the example always loses the same

	for b := (journal.Batch{}); !b.End; {
		if b, err = l.Read(context.Background(), b.Next, 0); err != nil {
			log.Fatal(err)
		}
		if b.Lost > 0 {
			fmt.Printf("(%d bytes lost)\n", b.Lost)
		}
		for _, c := range b.Chunks {
			fmt.Printf("%d %q\n", c.Stream, c.Data)
		}
		if b.End {
			fmt.Printf("%s\n", b.Result)
		}
	}
	// Output:
	// 1 "line 0\nline "
	// (19 bytes lost)
	// 1 "e 4\n"
	// 2 "bye\n"
	// exit 0
}

// agentvm runs commands in a Linux virtual machine that needs no KVM, no root and no daemon. docs/cli.md describes it.
package main

import "os"

func main() {
	collectLater()
	c := &cli{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	os.Exit(c.main(os.Args[1:]))
}

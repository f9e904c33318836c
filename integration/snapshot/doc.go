// Package snapshot tests many saved machines together: forks of one VM, processes that restore one file, and what each
// costs. Package vm has the tests for which one VM suffices.
package snapshot

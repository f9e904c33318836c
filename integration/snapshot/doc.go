// Package snapshot tests saved machines with many of them: forks of one VM, processes that restore one file, and what each
// costs. What one VM suffices for is tested in package vm.
package snapshot

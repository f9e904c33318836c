// Package standalone has the tests of modules that `agentvm image export --wasi` writes, in the runtimes of others: wazero with its own WASI,
// and Node. It has nothing to import.
package standalone

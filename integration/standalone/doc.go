// Package standalone tests the modules that `agentvm image export --wasi` writes, in other runtimes: wazero with its own WASI,
// and Node. It exports nothing.
package standalone

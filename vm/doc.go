// Package vm starts Linux virtual machines inside this process and runs commands in them. A machine is emulated in
// WebAssembly: it needs no KVM, no root and no other program.
//
//	v, err := vm.Start(ctx, vm.Config{})
//	if err != nil { ... }
//	defer v.Close()
//	result, err := v.Exec(ctx, "uname -a")
//
// The zero Config boots Alpine, which is downloaded once into the image store.
//
// All methods of a VM, Process and Shell may be called from several goroutines. Commands run concurrently. Each VM has
// goroutines of its own, one of which executes the machine; they have all ended when Stop or Close returns or Done is
// closed. A context given to Start bounds the start, one given to a command bounds that command; neither ends the VM.
//
// A VM's network ends in this process: Config.Network says what its guest may reach. Nothing of a VM is kept after its end.
package vm

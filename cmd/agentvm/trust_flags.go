package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"agentvm/client"
	"agentvm/internal/spec"
	"agentvm/vm"
)

// trustFlags say whom the guest trusts and what the VM may do with the host beyond its network and mounts.
type trustFlags struct {
	ca       string
	switches map[string]*bool // by their flags
	sockets  []string
}

func (f *trustFlags) register(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&f.ca, "ca-cert", "", "have the guest trust the certificates of this PEM `FILE` as well")
	f.switches = make(map[string]*bool)
	for _, s := range spec.Switches() {
		f.switches[s.Flag] = flags.Bool(s.Flag, false, s.Usage)
	}
	flags.StringArrayVar(&f.sockets, "socket", nil, "let the VM connect to a Unix socket of the host: `HOST[:GUEST][:MODE]`, paths and permissions in octal (guest default: the same path, mode 0666; may be repeated)")
	_ = command.MarkFlagFilename("ca-cert", "pem", "crt")
}

// apply puts what the flags say into a VM's configuration.
func (f *trustFlags) apply(config *vm.Config) (err error) {
	for _, s := range spec.Switches() {
		*s.In(config) = *f.switches[s.Flag]
	}
	if f.ca != "" {
		if config.CACertificate, err = readHostFile(f.ca); err != nil {
			return fmt.Errorf("--ca-cert: %w", err)
		}
	}
	for _, text := range f.sockets {
		socket, err := vm.ParseUnixSocket(text)
		if err != nil {
			return err
		}
		config.UnixSockets = append(config.UnixSockets, socket)
	}
	return nil
}

// changeTrust changes what the flags name.
func (f *startFlags) changeTrust(config *client.Config) (err error) {
	var checked vm.Config
	if err := f.trust.apply(&checked); err != nil { // which finds mistakes before there is a daemon
		return err
	}
	if f.changed("ca-cert") {
		if config.CACertificate, err = absoluteFile("--ca-cert", f.trust.ca); err != nil {
			return err
		}
		config.Forget(config.CACertificate)
	}
	for _, s := range spec.Switches() {
		if f.changed(s.Flag) {
			*s.In(&config.Config) = *f.trust.switches[s.Flag]
		}
	}
	if f.changed("socket") {
		config.Sockets = nil
		for _, socket := range checked.UnixSockets {
			config.Sockets = append(config.Sockets, socket.String())
			config.Forget(socket.Host) // the user names it now, so it means what is there now
		}
	}
	return nil
}

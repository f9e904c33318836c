package settings_test

import (
	"fmt"

	"agentvm/internal/settings"
)

func ExampleParse() {
	file, err := settings.Parse("agentvm.toml", []byte("memory = \"1G\"\n[network]\nallow = [\"pypi.org\"]"))
	fmt.Println(file.Value("memory"), file.Values["network.allow"], err)
	_, err = settings.Parse("agentvm.toml", []byte("memory = \"1G\"\n\nport = 8080"))
	fmt.Println(err)
	// Output:
	// 1G [pypi.org] <nil>
	// agentvm.toml:3:1: unknown key "port": there are image, platform, memory, cpus, cold, host-memory, mounts, masks, env, ports, ca-cert, no-new-privileges, read-only-root, sockets, secrets, idle-timeout, hibernate-after, max-lifetime, disk-size, sidecar, sidecar.name, sidecar.command, sidecar.env, sidecar.user, sidecar.restart, sidecar.backoff, network, network.mode, network.allow, network.allow-sni, network.allow-private, network.deny, network.host-ports, network.join, network.hosts, network.subnet, network.ip, network.mac, network.max-connections, access, access.listen-allow, access.listen-deny, access.connect-allow, access.connect-deny, access.loopback-exempt-ports, preview, preview.max-expires-in-seconds
}

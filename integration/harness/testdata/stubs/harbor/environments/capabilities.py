from dataclasses import dataclass


@dataclass
class EnvironmentCapabilities:
    disable_internet: bool = False
    network_allowlist: bool = False
    docker_compose: bool = False

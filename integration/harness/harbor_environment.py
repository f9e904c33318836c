"""Harbor's environment: harbor run -d terminal-bench@2.0 --environment-import-path harbor_environment:AgentvmEnvironment

It runs prebuilt images (docker_image of a task) for linux/riscv64. See agentvm.py for where the server is.
"""

import io
import tarfile
from pathlib import Path, PurePosixPath

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities

from agentvm import VM, timed_out

ARCHIVE = "/tmp/.transfer.tar"


class AgentvmEnvironment(BaseEnvironment):
    vm = None

    @staticmethod
    def type():
        return "agentvm"

    @property
    def capabilities(self):
        return EnvironmentCapabilities(disable_internet=True, network_allowlist=True)

    def _validate_definition(self):
        if not self.task_env_config.docker_image:
            raise ValueError("agentvm: the task has no docker_image: build its Dockerfile for linux/riscv64 first (agentvm build), and name the image")

    async def start(self, force_build):
        if force_build:
            raise ValueError("agentvm: force_build: images are prebuilt")
        new = {"image": self.task_env_config.docker_image, "network": self._network()}
        if self.task_env_config.memory_mb:
            new["memory"] = self.task_env_config.memory_mb << 20
        if self.task_env_config.storage_mb:
            new["diskSize"] = self.task_env_config.storage_mb << 20
        self.vm = await VM.create(**new)
        await self._checked("mkdir -p /logs/agent /logs/verifier /tests && chmod 777 /logs/agent /logs/verifier")

    def _network(self):
        policy = self.network_policy
        mode = getattr(policy.network_mode, "value", policy.network_mode)
        if mode == "public":
            return {"mode": "public"}
        if mode == "no-network":
            return {"mode": "none"}
        if mode == "allowlist":
            return {"mode": "allowlist", "allow": list(policy.allowed_hosts or [])}
        raise ValueError(f"agentvm: network mode {mode!r}")

    async def stop(self, delete):
        if self.vm and delete:
            await self.vm.remove()
        elif self.vm:
            await self.vm._json("POST", self.vm._path("/stop"), {})

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None, **_):
        r = await self.vm.run(command, cwd=cwd, env=self._merge_env(env), timeout=timeout_sec, user=self._resolve_user(user))
        if r.get("timedOut"):
            raise timed_out(r, timeout_sec)
        return ExecResult(stdout=r["stdout"].decode(errors="replace"), stderr=r["stderr"].decode(errors="replace"), return_code=r["exitCode"])

    async def upload_file(self, source_path, target_path):
        source = Path(source_path)
        await self.vm.write(str(target_path), source.read_bytes(), f"{source.stat().st_mode & 0o777:o}")

    async def download_file(self, source_path, target_path):
        target = Path(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(await self.vm.read(str(source_path)))

    async def upload_dir(self, source_dir, target_dir):
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(source_dir, ".")
        await self.vm.write(ARCHIVE, archive.getvalue())
        await self._checked('mkdir -p "$1" && tar -x -o -C "$1" -f "$2" && rm "$2"', str(PurePosixPath(target_dir)), ARCHIVE)

    async def download_dir(self, source_dir, target_dir):
        await self._checked('tar -c -C "$1" -f "$2" .', str(PurePosixPath(source_dir)), ARCHIVE)
        content = await self.vm.read(ARCHIVE)
        await self._checked('rm "$1"', ARCHIVE)
        Path(target_dir).mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            tar.extractall(target_dir, filter="data")  # what the VM sends stays in the directory

    async def _checked(self, command, *args):
        r = await self.vm.run(args=["/bin/sh", "-c", command, "sh", *args])
        if r["exitCode"] != 0:
            raise RuntimeError(f"{command}: exit code {r['exitCode']}: {r['stderr'].decode(errors='replace')}")

"""Inspect's sandbox "agentvm": a VM for each sample. Import this file from a task, or name it in an entry point of the group inspect_ai.

A task's configuration is the image, or nothing for the default one: sandbox=("agentvm", "python:3.12"). See agentvm.py for where the server is.
"""

import posixpath
import shlex

from inspect_ai.util import ExecResult, OutputLimitExceededError, SandboxEnvironment, sandboxenv

from agentvm import MAX_OUTPUT, VM, Problem

WORKDIR = "/workspace"
MAX_FILE = 100 << 20


@sandboxenv(name="agentvm")
class AgentvmSandbox(SandboxEnvironment):
    def __init__(self, vm):
        self.vm = vm

    @classmethod
    async def sample_init(cls, task_name, config, metadata):
        vm = await VM.create(**({"image": config} if config else {}))
        await vm.run("mkdir -p " + WORKDIR)
        return {"default": cls(vm)}

    @classmethod
    async def sample_cleanup(cls, task_name, config, environments, interrupted):
        for environment in environments.values():
            await environment.vm.remove()

    async def exec(self, cmd, input=None, cwd=None, env=None, user=None, timeout=None, timeout_retry=True, concurrency=True):
        data = input.encode() if isinstance(input, str) else input or b""
        try:
            r = await self.vm.run(args=list(cmd), input=data, cwd=self._path(cwd or ""), env=env, user=user, timeout=timeout)
        except Problem as problem:  # a user that does not exist, for example
            if user is None:
                raise
            return ExecResult(False, 1, "", str(problem))
        if r.get("timedOut"):
            raise TimeoutError(f"the command took more than {timeout} seconds")
        out, err = (r[stream].decode(errors="replace") for stream in ("stdout", "stderr"))
        if r.get("stdoutTruncated") or r.get("stderrTruncated"):
            raise OutputLimitExceededError(f"{MAX_OUTPUT >> 20} MiB", out + err)
        if r["exitCode"] == 126 and "ermission denied" in err:
            raise PermissionError(err)
        return ExecResult(r["exitCode"] == 0, r["exitCode"], out, err)

    async def write_file(self, file, contents):
        path = self._path(file)
        try:
            await self.vm.write(path, contents.encode() if isinstance(contents, str) else contents)
        except Problem as problem:
            raise await self._error(problem, path)

    async def read_file(self, file, text=True):
        path = self._path(file)
        try:
            if (await self.vm.info(path))["size"] > MAX_FILE:
                raise OutputLimitExceededError(f"{MAX_FILE >> 20} MiB", None)
            content = await self.vm.read(path)
        except Problem as problem:
            raise await self._error(problem, path)
        return content.decode() if text else content  # UnicodeDecodeError, as the contract says

    async def connection(self, *, user=None):
        from inspect_ai.util import SandboxConnection

        return SandboxConnection(type="agentvm", command=shlex.join(["agentvm", "exec", "-n", self.vm.name, *(["-u", user] if user else []), "-t", "/bin/sh"]))

    def _path(self, path):
        return posixpath.normpath(posixpath.join(WORKDIR, path))

    async def _error(self, problem, path):
        if problem.status == 403:
            return PermissionError(str(problem))
        try:
            if (await self.vm.info(path))["type"] == "directory":
                return IsADirectoryError(path)
        except Problem:
            pass
        return FileNotFoundError(path) if problem.status == 404 else problem

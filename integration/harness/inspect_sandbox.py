"""Inspect's sandbox "agentvm": a VM for each sample. Import this file from a task, or name it in an entry point of the group inspect_ai.

A task's configuration is the image, or nothing for the default one: sandbox=("agentvm", "python:3.12"). See agentvm.py for where the server is.
"""

import http.client
import posixpath
import shlex
import uuid

from inspect_ai.util import ExecResult, OutputLimitExceededError, SandboxEnvironment, SandboxEnvironmentLimits, sandboxenv

try:
    from inspect_ai.util import SandboxUnavailableError
except ImportError:  # an older Inspect
    SandboxUnavailableError = ConnectionError

from agentvm import VM, Problem, timed_out

WORKDIR = "/workspace"
PREFIX = "inspect-"  # of the VMs' names
MOST_OUTPUT = 16 << 20  # bytes of each stream that the server keeps at most


@sandboxenv(name="agentvm")
class AgentvmSandbox(SandboxEnvironment):
    left = {}  # VMs that samples have not removed, by name

    def __init__(self, vm):
        super().__init__()
        self.vm = vm

    @classmethod
    async def sample_init(cls, task_name, config, metadata):
        vm = await VM.create(name=PREFIX + uuid.uuid4().hex[:12], **({"image": config} if config else {}))
        cls.left[vm.name] = vm
        await vm.run("mkdir -p " + WORKDIR)
        return {"default": cls(vm)}

    @classmethod
    async def sample_cleanup(cls, task_name, config, environments, interrupted):
        for environment in environments.values():
            await cls._remove(environment.vm)

    @classmethod
    async def task_cleanup(cls, task_name, config, cleanup):
        for vm in list(cls.left.values()):
            if cleanup:
                await cls._remove(vm)
            else:
                print(f"VM {vm.name} is left: agentvm rm -f {vm.name}")

    @classmethod
    async def cli_cleanup(cls, id):
        for name in await VM.names():
            if name == id or id is None and name.startswith(PREFIX):
                await VM(name).remove()

    @classmethod
    async def _remove(cls, vm):
        """Removes a VM. What fails is left to task_cleanup, and then to `inspect sandbox cleanup agentvm`: a sample's result stands without it."""
        try:
            await vm.remove()
        except (Problem, OSError, http.client.HTTPException) as error:
            print(f"VM {vm.name} is not removed: {error}")
            return
        cls.left.pop(vm.name, None)

    async def exec(self, cmd, input=None, cwd=None, env=None, user=None, timeout=None, timeout_retry=True, concurrency=True):
        data = input.encode() if isinstance(input, str) else input or b""
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        try:
            r = await self.vm.run(args=list(cmd), input=data, cwd=self._path(cwd or ""), env=env, user=user, timeout=timeout, max_output=min(limit, MOST_OUTPUT))
        except (Problem, OSError, http.client.HTTPException) as error:
            if not await self.vm.runs():
                raise self._gone() from error
            if user is None or not isinstance(error, Problem):
                raise
            return ExecResult(False, 1, "", str(error))  # a user that does not exist, for example
        if r.get("timedOut"):
            raise timed_out(r, timeout)
        out, err = (r[stream].decode(errors="replace") for stream in ("stdout", "stderr"))
        if r.get("stdoutTruncated") or r.get("stderrTruncated"):
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, out + err)
        if r["exitCode"] == 126 and "ermission denied" in err:
            raise PermissionError(err)
        return ExecResult(r["exitCode"] == 0, r["exitCode"], out, err)

    async def write_file(self, file, contents):
        path = self._path(file)
        try:
            await self.vm.write(path, contents.encode() if isinstance(contents, str) else contents)
        except (Problem, OSError, http.client.HTTPException) as error:
            raise await self._error(error, path) from error

    async def read_file(self, file, text=True):
        path = self._path(file)
        try:
            if (await self.vm.info(path))["size"] > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
            content = await self.vm.read(path)
        except (Problem, OSError, http.client.HTTPException) as error:
            raise await self._error(error, path) from error
        return content.decode() if text else content  # UnicodeDecodeError, as the contract says

    async def connection(self, *, user=None):
        from inspect_ai.util import SandboxConnection

        if not await self.vm.runs():
            raise ConnectionError(f"VM {self.vm.name} does not run")
        return SandboxConnection(type="agentvm", command=shlex.join(["agentvm", "exec", "-n", self.vm.name, *(["-u", user] if user else []), "-t", "/bin/sh"]))

    def _path(self, path):
        return posixpath.normpath(posixpath.join(WORKDIR, path))

    def _gone(self):
        return SandboxUnavailableError(f"VM {self.vm.name} does not run any more, or the server at AGENTVM_URL does not")

    async def _error(self, error, path):
        if not await self.vm.runs():
            return self._gone()
        if not isinstance(error, Problem):
            return error
        if error.status == 403:
            return PermissionError(f"{path}: {error}")
        try:
            if (await self.vm.info(path))["type"] == "directory":
                return IsADirectoryError(f"{path} is a directory")
        except Problem:
            pass
        return FileNotFoundError(path) if error.status == 404 else error

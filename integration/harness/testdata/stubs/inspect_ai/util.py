"""The names of inspect_ai.util that the adapter uses, with the members and signatures that they have there (after 0.3.260)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

registered = {}


@dataclass
class ExecResult:
    success: bool
    returncode: int
    stdout: str
    stderr: str


class SandboxEnvironmentLimits:
    """Inspect reads them at each call: tasks change them, and its self_check does."""

    MAX_EXEC_OUTPUT_SIZE = 10 << 20
    MAX_EXEC_OUTPUT_SIZE_STR = "10 MiB"
    MAX_READ_FILE_SIZE = 100 << 20
    MAX_READ_FILE_SIZE_STR = "100 MiB"


class SandboxUnavailableError(Exception):
    pass


class OutputLimitExceededError(Exception):
    def __init__(self, limit_str, truncated_output):
        super().__init__(f"the limit of {limit_str} was exceeded")
        self.limit_str, self.truncated_output = limit_str, truncated_output


@dataclass
class SandboxConnection:
    type: str
    command: str


class SandboxEnvironment(ABC):
    """The real one's constructor keeps what exec_remote needs, and the proxy around a sandbox counts the parameters of exec."""

    def __init__(self):
        self._remote = object()

    @abstractmethod
    async def exec(self, cmd, input=None, cwd=None, env=None, user=None, timeout=None, timeout_retry=True, concurrency=True): ...

    @abstractmethod
    async def write_file(self, file, contents): ...

    @abstractmethod
    async def read_file(self, file, text=True): ...

    @classmethod
    @abstractmethod
    async def sample_cleanup(cls, task_name, config, environments, interrupted): ...

    @classmethod
    async def sample_init(cls, task_name, config, metadata): ...

    @classmethod
    async def task_init(cls, task_name, config): ...

    @classmethod
    async def task_cleanup(cls, task_name, config, cleanup): ...

    @classmethod
    async def cli_cleanup(cls, id): ...

    async def connection(self, *, user=None): ...

    async def exec_remote(self, cmd, options=None, *, stream=True):
        assert self._remote
        return await self.exec(cmd)


def sandboxenv(name):
    def register(cls):
        registered[name] = cls
        return cls

    return register

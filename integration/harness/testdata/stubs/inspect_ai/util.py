"""The names of inspect_ai.util that the adapter uses, with the members that its documentation gives them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

registered = {}


@dataclass
class ExecResult:
    success: bool
    returncode: int
    stdout: str
    stderr: str


class OutputLimitExceededError(Exception):
    def __init__(self, limit_str, truncated_output):
        super().__init__(limit_str)
        self.limit_str, self.truncated_output = limit_str, truncated_output


@dataclass
class SandboxConnection:
    type: str
    command: str


class SandboxEnvironment(ABC):
    @abstractmethod
    async def exec(self, cmd, input=None, cwd=None, env={}, user=None, timeout=None, timeout_retry=True, concurrency=True): ...

    @abstractmethod
    async def write_file(self, file, contents): ...

    @abstractmethod
    async def read_file(self, file, text=True): ...

    @classmethod
    @abstractmethod
    async def sample_cleanup(cls, task_name, config, environments, interrupted): ...


def sandboxenv(name):
    def register(cls):
        registered[name] = cls
        return cls

    return register

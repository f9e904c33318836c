"""What Harbor's BaseEnvironment gives its subclasses and wants of them, as its documentation says."""

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass
class ExecResult:
    return_code: int
    stdout: str | None = None
    stderr: str | None = None


@dataclass
class NetworkPolicy:
    network_mode: str = "public"
    allowed_hosts: list | None = None


class BaseEnvironment(ABC):
    def __init__(self, environment_dir, environment_name, session_id, trial_paths, task_env_config, persistent_env=None, network_policy=None, **_):
        self.environment_dir, self.session_id, self.task_env_config = environment_dir, session_id, task_env_config
        self.network_policy = network_policy or NetworkPolicy()
        self.default_user, self._persistent_env = None, persistent_env or {}
        self._validate_definition()

    def _resolve_user(self, user):
        return user if user is not None else self.default_user

    def _merge_env(self, env):
        return {**self._persistent_env, **(env or {})} or None

    @staticmethod
    @abstractmethod
    def type(): ...

    @abstractmethod
    def _validate_definition(self): ...

    @abstractmethod
    async def start(self, force_build): ...

    @abstractmethod
    async def stop(self, delete): ...

    @abstractmethod
    async def upload_file(self, source_path, target_path): ...

    @abstractmethod
    async def upload_dir(self, source_dir, target_dir): ...

    @abstractmethod
    async def download_file(self, source_path, target_path): ...

    @abstractmethod
    async def download_dir(self, source_dir, target_dir): ...

    @abstractmethod
    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None): ...

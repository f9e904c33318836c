"""Checks the Python adapters against their contracts, in VMs of the server that AGENTVM_URL names: python3 driver.py"""

import asyncio
import inspect as signatures
import os
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

here = Path(__file__).parent
sys.path[:0] = [str(here.parent), str(here / "stubs")]

from harbor.environments.base import NetworkPolicy  # noqa: E402
from harbor_environment import AgentvmEnvironment  # noqa: E402
from inspect_ai.util import (  # noqa: E402
    ExecResult, OutputLimitExceededError, SandboxEnvironment, SandboxEnvironmentLimits, SandboxUnavailableError, registered,
)

import inspect_sandbox  # noqa: E402, F401
from agentvm import VM, Problem  # noqa: E402

IMAGE = os.environ.get("AGENTVM_IMAGE", "busybox")


async def raises(kind, awaitable):
    try:
        got = await awaitable
    except kind as error:
        return error
    raise AssertionError(f"want {kind.__name__}, got {got!r}")


def equal(got, want):
    assert got == want, f"got {got!r}, want {want!r}"


async def inspect():
    cls = registered["agentvm"]
    for name, method in vars(SandboxEnvironment).items():
        if callable(method) or isinstance(method, classmethod):
            want, got = (signatures.signature(getattr(c, name)).parameters for c in (SandboxEnvironment, cls))
            equal([(p.name, p.kind, p.default) for p in got.values() if name != "__init__"], [(p.name, p.kind, p.default) for p in want.values() if name != "__init__"])
    environments = await cls.sample_init("task", IMAGE, {})
    s = environments["default"]
    try:
        equal(await s.exec(["sh", "-c", "echo out; echo err >&2; exit 3"]), ExecResult(False, 3, "out\n", "err\n"))
        equal((await s.exec(["sh", "-c", "pwd; echo $A"], env={"A": "a b"})).stdout, "/workspace\na b\n")
        equal((await s.exec(["pwd"], cwd="/usr")).stdout, "/usr\n")
        equal((await s.exec(["sh", "-c", "mkdir sub; cd sub; pwd"])).stdout, "/workspace/sub\n")
        equal((await s.exec(["pwd"], cwd="sub")).stdout, "/workspace/sub\n")
        equal((await s.exec(["cat"], input="text ß")).stdout, "text ß")
        equal((await s.exec(["wc", "-c"], input=b"\0\xff" * 1000)).stdout.strip(), "2000")
        equal((await s.exec(["wc", "-c"], input=b"x" * (50 << 20))).stdout.strip(), str(50 << 20))
        equal((await s.exec(["sh", "-c", "ls /tmp/.stdin-* 2>/dev/null | wc -l"])).stdout.strip(), "0")
        equal((await s.exec(["sh", "-c", 'echo $#', "sh", *["x" * (64 << 10)] * 16])).stdout, "16\n")
        equal((await s.exec(["sh", "-c", "kill -9 $$"], timeout=60)).returncode, 137)
        equal((await s.exec_remote(["echo", "remote"], stream=False)).stdout, "remote\n")
        began = time.monotonic()
        late = await raises(TimeoutError, s.exec(["sh", "-c", "echo before; sleep 4801 & sleep 4802"], timeout=2))
        equal(late.truncated_output, "before\n")
        assert time.monotonic() - began < 30
        equal((await s.exec(["sh", "-c", "ps | grep -c '[s]leep 480'"])).stdout, "0\n")
        call = asyncio.ensure_future(s.exec(["sleep", "4803"]))
        await asyncio.sleep(1)
        call.cancel()
        await raises(asyncio.CancelledError, call)
        for _ in range(100):
            if (await s.exec(["sh", "-c", "ps | grep -c '[s]leep 4803'"])).stdout == "0\n":
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError("a cancelled command runs on")
        unknown = await s.exec(["true"], user="nosuchuser")
        assert not unknown.success and "nosuchuser" in unknown.stdout + unknown.stderr, unknown
        await s.exec(["sh", "-c", "echo 'u:x:1001:1001::/:/bin/sh' >>/etc/passwd"])
        equal((await s.exec(["id", "-u"], user="u")).stdout, "1001\n")
        await raises(OutputLimitExceededError, s.exec(["sh", "-c", "yes | head -c 11000000"]))

        await s.write_file("new/dir/with space.txt", "text ß\n")
        equal(await s.read_file("new/dir/with space.txt"), "text ß\n")
        equal(await s.read_file("/workspace/new/dir/with space.txt", text=False), "text ß\n".encode())
        await s.write_file("binary", b"\0\xff")
        await raises(UnicodeDecodeError, s.read_file("binary"))
        equal(await s.read_file("binary", text=False), b"\0\xff")
        await s.write_file("empty", "")
        equal(await s.read_file("empty"), "")
        await raises(FileNotFoundError, s.read_file("none"))
        await raises(IsADirectoryError, s.read_file("new"))
        await raises(IsADirectoryError, s.write_file("new", "x"))
        await raises(PermissionError, s.exec(["./binary"]))
        await s.exec(["sh", "-c", "truncate -s 101M large"])
        await raises(OutputLimitExceededError, s.read_file("large"))
        with mock.patch.object(SandboxEnvironmentLimits, "MAX_READ_FILE_SIZE", 1024), mock.patch.object(SandboxEnvironmentLimits, "MAX_EXEC_OUTPUT_SIZE", 1024):
            await s.exec(["sh", "-c", "truncate -s 2K small"])
            assert "limit of 100 MiB" in str(await raises(OutputLimitExceededError, s.read_file("small")))
            await raises(OutputLimitExceededError, s.exec(["sh", "-c", "yes | head -c 2000"]))
        assert "exec -n " + s.vm.name in (await s.connection(user="u")).command
    finally:
        await cls.sample_cleanup("task", IMAGE, environments, False)
    equal((await raises(Problem, s.vm.run("true"))).status, 404)
    # The VM is gone: the sample ends with an error that Inspect knows, and cleaning up again is none.
    for call in (s.exec(["true"]), s.exec(["true"], user="u"), s.write_file("x", "y"), s.read_file("x")):
        await raises(SandboxUnavailableError, call)
    await raises(ConnectionError, s.connection())
    await cls.sample_cleanup("task", IMAGE, environments, True)
    equal(cls.left, {})
    # What a sample has left, its task removes, or the command.
    for cleanup in (cls.task_cleanup("task", IMAGE, True), cls.cli_cleanup(None)):
        left = (await cls.sample_init("task", IMAGE, {}))["default"].vm.name
        await cls.task_cleanup("task", IMAGE, False)
        assert left in await VM.names()
        await cleanup
        assert left not in await VM.names()
        cls.left.clear()


def harbor(directory, image=IMAGE, **options):
    config = SimpleNamespace(docker_image=image, cpus=1, memory_mb=256, storage_mb=1024)
    return AgentvmEnvironment(directory, "task", "task__1", None, config, **options)


async def harbor_contract():
    equal(AgentvmEnvironment.type(), "agentvm")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        await raises(ValueError, asyncio.to_thread(harbor, directory, image=None))
        await raises(ValueError, harbor(directory, network_policy=NetworkPolicy("other")).start(False))
        await raises(ValueError, harbor(directory).start(True))
        e = harbor(directory, persistent_env={"P": "1"}, network_policy=NetworkPolicy("allowlist", ["pypi.org"]))
        await e.start(False)
        try:
            r = await e.exec('echo "$P $Q"; pwd; id -u; echo err >&2; exit 4', cwd="/usr", env={"Q": "2"}, timeout_sec=60, user="root")
            equal((r.stdout, r.stderr, r.return_code), ("1 2\n/usr\n0\n", "err\n", 4))
            equal((await e.exec("ls -d /logs/agent /logs/verifier")).return_code, 0)
            equal((await raises(TimeoutError, e.exec("echo before; sleep 100", timeout_sec=2))).truncated_output, "before\n")
            e.default_user = 65534
            equal((await e.exec("id -u; touch /logs/agent/x")).stdout, "65534\n")
            e.default_user = None
            policy = await e.vm._json("GET", e.vm._path(""))
            assert "pypi.org" in policy["policy"], policy

            tree = directory / "tree"
            (tree / "a b").mkdir(parents=True)
            (tree / "a b" / "run.sh").write_text("#!/bin/sh\necho ran\n")
            (tree / "a b" / "run.sh").chmod(0o755)
            await e.upload_dir(tree, "/tests/it's")
            equal((await e.exec("'/tests/it'\\''s/a b/run.sh'")).stdout, "ran\n")
            await e.upload_file(tree / "a b" / "run.sh", "/root/run")
            equal((await e.exec("/root/run")).stdout, "ran\n")
            await e.exec("echo out >/logs/verifier/reward.txt; ln -s /etc/passwd /logs/verifier/link")
            await e.download_file("/logs/verifier/reward.txt", directory / "down" / "reward.txt")
            equal((directory / "down" / "reward.txt").read_text(), "out\n")
            await e.exec("rm /logs/verifier/link")
            await e.download_dir("/logs/verifier", directory / "verifier")
            equal((directory / "verifier" / "reward.txt").read_text(), "out\n")
            # What the VM packs cannot leave the directory.
            await e.exec("ln -s /tmp /logs/verifier/out")
            await raises(tarfile.FilterError, e.download_dir("/logs/verifier", directory / "hostile"))
        finally:
            await e.stop(True)
        await e.stop(True)  # a VM that is gone is no failure
        equal((await raises(Problem, VM(e.vm.name).run("true"))).status, 404)


async def main():
    await inspect()
    print("inspect_ai: the contract holds")
    await harbor_contract()
    print("harbor: the contract holds")


asyncio.run(main())

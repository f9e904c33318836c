"""Calls a server: AGENTVM_URL and AGENTVM_KEY say where, and with which key. go test ./integration/harness runs it."""

import os
import threading
import time
from base64 import b64decode

from agentvm import Client, Closed, Problem

VM = "python-client"
client = Client(os.environ["AGENTVM_URL"], os.environ["AGENTVM_KEY"])


def refused(status, call, *args, **query):
    try:
        call(*args, **query)
    except Problem as problem:
        assert problem.status == status, problem
    else:
        raise AssertionError(f"no status {status}")


seen = []
listener = Client(os.environ["AGENTVM_URL"], os.environ["AGENTVM_KEY"])


def listen():
    for _, event in listener.get_events(vm=VM):
        seen.append(event["kind"])


thrown = []
threading.excepthook = lambda error: thrown.append(error.exc_value)
listening = threading.Thread(target=listen)
listening.start()
assert client.post_vms({"name": VM, "memory": 128 << 20, "network": {"mode": "none"}})["state"] == "running"
try:
    assert any(v["name"] == VM for v in client.get_vms())
    ran = client.post_vms_exec(VM, {"command": "echo out; echo err >&2; exit 3"})
    assert (ran["exitCode"], ran["stdout"], ran["stderr"]) == (3, "out\n", "err\n"), ran
    for _ in range(2):
        once = client.having(Idempotency_Key="once-py").post_vms_exec(VM, {"command": "echo x >>/tmp/once; wc -l </tmp/once"})
        assert once["stdout"].strip() == "1", once

    events = list(client.post_vms_exec_stream(VM, {"command": "echo a; sleep 0.2; echo é€😀; exit 4"}))
    assert "".join(data["data"] for event, data in events if event == "stdout") == "a\né€😀\n", events
    assert events[-1][0] == "exit" and events[-1][1]["exitCode"] == 4, events
    stream = client.post_vms_exec_stream(VM, {"command": "echo x; exec sleep 1000"})
    next(stream)
    stream.close()  # the command is killed

    content, file = bytes(i * 7 % 256 for i in range(300_000)), "/root/a b/ü+%.bin"
    client.put_vms_files(VM, content, path=file, mode="600")
    assert client.get_vms_files(VM, path=file) == content
    assert client.get_vms_files_info(VM, path=file)["mode"] == "0600"
    client.delete_vms_files(VM, path="/root/a b")
    refused(404, client.get_vms_files, VM, path=file)

    job = client.post_vms_jobs(VM, {"command": "cat; exit 5", "input": True})["id"]
    client.post_vms_jobs_input(VM, job, b"to a job", end="true")
    text, place, ended = b"", 0, False
    while not ended:
        part = client.get_vms_jobs_output(VM, job, from_=place, waitSeconds=10)
        text += b"".join(b64decode(chunk["data"]) for chunk in part["chunks"])
        place, ended = part["next"], part.get("ended", False)
    assert (text, client.get_vms_jobs_one(VM, job)["exitCode"]) == (b"to a job", 5), text

    cut, ended = Client(os.environ["AGENTVM_URL"], os.environ["AGENTVM_KEY"]), []

    def wait():
        try:
            cut.get_vms_jobs_output(VM, client.post_vms_jobs(VM, {"command": "exec sleep 1000"})["id"], waitSeconds=30)
        except Closed as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while waiting.is_alive():
        cut.close()  # until it has begun
        waiting.join(0.05)
    assert ended, "a call that was cut has not raised Closed"

    assert client.get_vms_network(VM)["mode"] == "none"
    refused(409, client.post_vms, {"name": VM})
    refused(400, client.post_vms, {"name": "../x"})
    refused(401, Client(os.environ["AGENTVM_URL"], "another-key-0123").get_vms)
finally:
    client.delete_vms_one(VM)
deadline = time.monotonic() + 60
while "removed" not in seen and time.monotonic() < deadline:
    time.sleep(0.05)
listener.close()
listening.join()
assert not thrown, thrown
for what in ("running", "job-started", "job-ended", "removed"):
    assert what in seen, seen

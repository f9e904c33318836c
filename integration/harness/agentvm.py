"""A VM of `agentvm serve`, for the adapters beside this file. It needs nothing but Python 3.10.

AGENTVM_URL and AGENTVM_KEY say where the server is and with which key it answers.
"""

import asyncio
import http.client
import json
import os
import socket
import urllib.parse
import uuid

LARGE_INPUT = 1 << 20  # bytes of standard input that a request has at most: its whole body may have 4 MiB
MAX_OUTPUT = 10 << 20  # bytes of each stream that are kept


class Problem(Exception):
    """An answer of the server that is an error (RFC 9457)."""

    def __init__(self, status, detail):
        super().__init__(detail)
        self.status = status


def timed_out(result, seconds):
    """Returns the error of a command that took too long. Its truncated_output, of which Inspect knows, is what the command had written."""
    error = TimeoutError(f"the command took more than {seconds} seconds")
    error.truncated_output = (result["stdout"] + result["stderr"]).decode(errors="replace")
    return error


class VM:
    def __init__(self, name, url=None, key=None):
        self.name = name
        self._url = urllib.parse.urlsplit(url or os.environ["AGENTVM_URL"])
        self._key = key or os.environ["AGENTVM_KEY"]

    @classmethod
    async def create(cls, url=None, key=None, **new):
        """Makes a VM. `new` has the members of POST /v1/vms: image, memory (bytes), network, env and others."""
        vm = cls(new.setdefault("name", "harness-" + uuid.uuid4().hex[:12]), url, key)
        await vm._json("POST", "/v1/vms", new)
        return vm

    @classmethod
    async def names(cls, url=None, key=None):
        """Returns the names of all VMs of the server."""
        return [one["name"] for one in await cls("", url, key)._json("GET", "/v1/vms")]

    async def remove(self):
        """Removes the VM. One that is gone already is no failure."""
        try:
            await self._json("DELETE", self._path(""))
        except Problem as problem:
            if problem.status != 404:
                raise

    async def runs(self):
        """Says whether there is such a VM, and it runs."""
        try:
            return (await self._json("GET", self._path("")))["state"] == "running"
        except (Problem, OSError, http.client.HTTPException):
            return False

    async def run(self, command=None, args=None, *, input=b"", cwd=None, env=None, user=None, timeout=None, max_output=MAX_OUTPUT):
        """Runs shell source, or a program, and returns the server's answer with `stdout` and `stderr` as bytes. A cancelled call kills it."""
        from base64 import b64decode, b64encode

        body = {"dir": cwd, "env": env, "user": None if user is None else str(user), "timeoutSeconds": timeout, "maxOutput": max_output, "base64": True}
        file = None
        if len(input) > LARGE_INPUT:
            file = "/tmp/.stdin-" + uuid.uuid4().hex
            await self.write(file, input)
            args, command = ["/bin/sh", "-c", 'f=$1; shift; exec "$@" <"$f"', "sh", file, *(args or ["/bin/sh", "-c", command])], None
        else:
            body["stdin"] = b64encode(input).decode()
        body |= {"command": command} if args is None else {"args": args}
        try:
            result = await self._json("POST", self._path("/exec"), {k: v for k, v in body.items() if v is not None})
        finally:
            if file:
                await self._json("DELETE", self._path("/files", file))
        return result | {stream: b64decode(result[stream]) for stream in ("stdout", "stderr")}

    async def write(self, path, content, mode=None):
        await self._call("PUT", self._path("/files", path) + (f"&mode={mode}" if mode else ""), content, "application/octet-stream")

    async def read(self, path):
        return await self._call("GET", self._path("/files", path))

    async def info(self, path):
        return await self._json("GET", self._path("/files/info", path))

    def _path(self, rest, file=None):
        return f"/v1/vms/{self.name}{rest}" + ("" if file is None else "?path=" + urllib.parse.quote(file, safe=""))

    async def _json(self, method, path, body=None):
        answer = await self._call(method, path, None if body is None else json.dumps(body).encode(), "application/json")
        return json.loads(answer) if answer else None

    async def _call(self, method, path, body=None, kind=None):
        maker = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        connection = maker(self._url.hostname, self._url.port)

        def call():
            headers = {"Authorization": "Bearer " + self._key} | ({"Content-Type": kind} if body is not None else {})
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()

        try:
            status, answer = await asyncio.to_thread(call)
        finally:
            if connection.sock:  # after a cancelled call: the server sees that no client waits
                try:
                    connection.sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            connection.close()
        if status >= 400:
            try:
                detail = json.loads(answer)["detail"]
            except (ValueError, KeyError, TypeError):
                detail = answer.decode(errors="replace")[:500]
            raise Problem(status, detail)
        return answer

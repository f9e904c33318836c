"""A client of `agentvm serve` that needs nothing but Python 3.10.

    client = Client("http://127.0.0.1:8480", key)
    client.post_vms({"name": "dev"})
    print(client.post_vms_exec("dev", {"command": "uname -a"})["stdout"])
    for event, data in client.get_events():
        print(event, data)

Each operation of the server's /openapi.json is a method; operations.py has them and their types. Methods may be called by several threads.
"""

from __future__ import annotations

import http.client
import json
import socket
import urllib.parse
from typing import Any, Iterator

from .operations import *  # noqa: F403: the types
from .operations import Operations


class Problem(Exception):
    """An answer of the server that is an error (RFC 9457)."""

    def __init__(self, status: int, detail: str):
        super().__init__(detail)
        self.status = status


class Closed(Exception):
    """The call was cut by Client.close."""


class Client(Operations):
    def __init__(self, url: str, key: str, headers: dict[str, str] | None = None):
        self._url = urllib.parse.urlsplit(url)
        self._headers = {**(headers or {}), "Authorization": "Bearer " + key}
        self._open: set[http.client.HTTPConnection] = set()
        self._cut: set[http.client.HTTPConnection] = set()  # those of _open that close has cut

    def having(self, **headers: str) -> Client:
        """Returns a client that sends further headers: having(Idempotency_Key="...")."""
        client = Client(self._url.geturl(), "", {name.replace("_", "-"): value for name, value in headers.items()})
        client._headers |= {"Authorization": self._headers["Authorization"]}
        return client

    def close(self) -> None:
        """Cuts the calls that are being made, which ends the commands that they run: a call raises Closed, a stream of events ends."""
        for connection in list(self._open):
            self._cut.add(connection)
            if connection.sock:
                try:
                    connection.sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # it has ended

    def _call(self, method: str, path: str, parameters: list[str], query: dict[str, Any], body: Any, answer: str) -> Any:
        for value in parameters:
            head, rest = path.split("{", 1)
            path = head + urllib.parse.quote(value, safe="") + rest.split("}", 1)[1]
        given = {name: value for name, value in query.items() if value is not None}
        if given:
            path += "?" + urllib.parse.urlencode(given)
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/octet-stream" if isinstance(body, bytes) else "application/json"
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
        maker = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        connection = maker(self._url.hostname or "", self._url.port)
        self._open.add(connection)
        kept = False
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            if response.status >= 400:
                raise _problem(response.status, response.read())
            if answer == "events":
                kept = True
                return self._events(connection, response)
            content = response.read()
            return {"json": lambda: json.loads(content), "bytes": lambda: content, "none": lambda: None}[answer]()
        except (http.client.HTTPException, OSError) as error:
            if connection in self._cut:
                raise Closed("the client was closed during " + method + " " + path) from error
            raise
        finally:
            if not kept:
                self._end(connection)

    def _events(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
        try:
            event = ""
            for line in response:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "event":
                    event = value
                elif name == "data":
                    yield event, json.loads(value)
        except (http.client.HTTPException, OSError, ValueError):
            if connection not in self._cut:
                raise
        finally:
            self._end(connection)

    def _end(self, connection: http.client.HTTPConnection) -> None:
        self._open.discard(connection)
        self._cut.discard(connection)
        connection.close()


def _problem(status: int, answer: bytes) -> Problem:
    try:
        return Problem(status, json.loads(answer)["detail"])
    except (ValueError, KeyError, TypeError):
        return Problem(status, answer.decode(errors="replace")[:500])

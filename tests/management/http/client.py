"""A client of the HTTP API on the standard library, which sends paths exactly as given."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from tests.support.broker import LeveretProcess


class Reply:
    """An answer: the status, the headers with names in lower case, and the decoded body."""

    def __init__(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.status = status
        self.headers = headers
        self.content = content

    @property
    def json(self) -> Any:
        return json.loads(self.content)


def send(
    port: int, method: str, path: str, content: bytes | None = None, headers: Mapping[str, str] | None = None
) -> Reply:
    """Send a request to a port of this machine over a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, content, dict(headers or {}))
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        data = response.read()
    finally:
        connection.close()
    return Reply(response.status, found, gzip.decompress(data) if found.get("content-encoding") == "gzip" else data)


class HttpApi(ABC):
    """The HTTP API of a broker, Leveret or RabbitMQ."""

    prefix = ""

    @property
    @abstractmethod
    def port(self) -> int: ...

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        user: str | None = "guest",
        password: str | None = None,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Reply:
        """Send a request to a path below `/api`. The password defaults to the name of the user."""
        sent = dict(headers or {})
        if user is not None:
            token = f"{user}:{user if password is None else password}".encode()
            sent["Authorization"] = "Basic " + base64.b64encode(token).decode()
        content = raw if body is None else json.dumps(body).encode()
        if body is not None:
            sent.setdefault("Content-Type", "application/json")  # RabbitMQ 3 requires it
        return send(self.port, method, f"{self.prefix}/api{path}", content, sent)

    def get(self, path: str, user: str = "guest") -> Any:
        """Return the body of a successful GET."""
        reply = self("GET", path, user=user)
        assert reply.status == 200, (path, reply.status, reply.content)
        return reply.json


class HttpBroker(HttpApi):
    """The HTTP API of a Leveret process."""

    def __init__(self, process: LeveretProcess, prefix: str = "") -> None:
        self.process = process
        self.prefix = prefix

    @property
    def port(self) -> int:
        ready = json.loads((self.process.directory / "ready.json").read_text("utf-8"))
        return int(ready["management"][0].rstrip("/").removesuffix(self.prefix).rpartition(":")[2])


class HttpRabbit(HttpApi):
    """The HTTP API of a RabbitMQ process on a port."""

    def __init__(self, port: int) -> None:
        self._port = port

    @property
    def port(self) -> int:
        return self._port

"""Handlers of tunnelled requests by name, found as entry points of the group `leveret.tunnel`.

A handler is a callable that takes a `Request`; its result is ignored. It runs in its own thread, one request at a time, so
that a slow handler delays only its own callers. The name of its entry point is the `data-name` of its requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from queue import SimpleQueue
from threading import Thread
from typing import Final

from leveret.broker.values import FieldTable

logger = logging.getLogger("leveret.tunnel")

GROUP: Final = "leveret.tunnel"
# Maximum number of requests that wait for one handler.
MAX_WAITING: Final = 100

Post = Callable[[Callable[[], None]], object]
# Called on the broker's event loop with the exception of the handler, or None.
Done = Callable[[Exception | None], None]


class Refused(Exception):
    """Raised by a handler to refuse a request. The client gets the text with reply code 406."""


@dataclass(frozen=True, slots=True)
class Request:
    """One `tunnel.request`.

    Attributes:
        user: user who sent it.
        vhost: vhost of the connection.
        meta_data: field of the method, for use by the handler.
        headers: property of the content; empty if absent.
        proxy_name: property of the content; "" if absent.
        data_name: property of the content; "" if absent.
        durable: property of the content; 0 if absent.
        broadcast: property of the content; 0 if absent.
        body: body of the content.
    """

    user: str
    vhost: str
    meta_data: FieldTable
    headers: FieldTable
    proxy_name: str
    data_name: str
    durable: int
    broadcast: int
    body: bytes


class Worker:
    """A handler and its thread. `waiting` counts the requests that it has not finished."""

    def __init__(self, entry_point: EntryPoint, post: Post) -> None:
        self.name = f"{entry_point.name} of {_origin(entry_point)}"
        self.waiting = 0
        self._entry_point = entry_point
        self._post = post
        self._jobs: SimpleQueue[tuple[Request, Done]] = SimpleQueue()
        self._thread: Thread | None = None

    def is_busy(self) -> bool:
        """Return whether the maximum number of requests are unfinished."""
        return self.waiting >= MAX_WAITING

    def submit(self, request: Request, done: Done) -> None:
        """Pass a request to the handler, and call `done` when it has finished."""
        self.waiting += 1
        self._jobs.put((request, done))
        if self._thread is None:
            # A daemon thread: the broker does not wait for it when it stops.
            self._thread = Thread(target=self._run, name=f"{GROUP}: {self._entry_point.name}", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            request, done = self._jobs.get()
            error = self._handle(request)
            self._post(partial(self._report, done, error))

    def _handle(self, request: Request) -> Exception | None:
        try:
            self._entry_point.load()(request)  # cached; a failed import is retried
        except Refused as error:
            return error
        # Also SystemExit, which must end neither the thread nor the broker.
        except BaseException as error:
            logger.exception("the tunnel handler %s failed", self.name)
            return RuntimeError(type(error).__name__)
        return None

    def _report(self, done: Done, error: Exception | None) -> None:
        self.waiting -= 1
        done(error)


class Tunnels:
    """The handlers of a broker, by data-name. They are looked up at the first request."""

    def __init__(self) -> None:
        self._post: Post | None = None
        self._workers: dict[str, list[Worker]] | None = None

    def start(self, post: Post) -> None:
        """Start. `post` schedules a callback on the broker's event loop from any thread."""
        self._post = post

    def find(self, name: str) -> list[Worker]:
        """Return the handlers with a name, sorted by distribution."""
        if self._workers is None:
            assert self._post is not None
            self._workers = {}
            for entry_point in sorted(entry_points(group=GROUP), key=lambda found: (found.name, _origin(found))):
                self._workers.setdefault(entry_point.name, []).append(Worker(entry_point, self._post))
        return self._workers.get(name, [])


def _origin(entry_point: EntryPoint) -> str:
    """Return the distribution of an entry point; "" if it is unknown."""
    return "" if entry_point.dist is None else entry_point.dist.name

"""Handlers of tunnelled requests by name, found as entry points of the group `leveret.tunnel`.

A handler is a callable that takes a `Request`; its result is ignored. It processes one request at a time in its own thread,
so that a handler that is slow, or never returns, only delays its own callers. The name of its entry point is the
`data-name` of its requests.
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

log = logging.getLogger("leveret.tunnel")

GROUP: Final = "leveret.tunnel"
# Requests that may wait for one handler.
MAX_WAITING: Final = 100

Post = Callable[[Callable[[], None]], object]
# Called on the broker's loop with what the handler raised, None where all went well.
Done = Callable[[Exception | None], None]


class Refused(Exception):
    """Raised by a handler that refuses a request; the client gets the text, with reply code 406."""


@dataclass(frozen=True, slots=True)
class Request:
    """One `tunnel.request`.

    user, vhost  who has sent it, and in which virtual host
    meta_data    of the method: whatever the sender has to tell the handler
    headers, proxy_name, data_name  properties of the content, empty where it has none of them
    durable, broadcast  the same, 0 where it has none
    body         what was tunnelled
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
    """A handler and its thread. waiting: requests that it is not done with."""

    def __init__(self, entry_point: EntryPoint, post: Post) -> None:
        self.name = f"{entry_point.name} of {_origin(entry_point)}"
        self.waiting = 0
        self._entry_point = entry_point
        self._post = post
        self._jobs: SimpleQueue[tuple[Request, Done]] = SimpleQueue()
        self._thread: Thread | None = None

    def is_busy(self) -> bool:
        """Whether as many requests wait as may."""
        return self.waiting >= MAX_WAITING

    def submit(self, request: Request, done: Done) -> None:
        """Have a request handled; `done` is called once it was."""
        self.waiting += 1
        self._jobs.put((request, done))
        if self._thread is None:
            # The broker does not wait for it when it stops.
            self._thread = Thread(target=self._run, name=f"{GROUP}: {self._entry_point.name}", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            request, done = self._jobs.get()
            error = self._handle(request)
            self._post(partial(self._report, done, error))

    def _handle(self, request: Request) -> Exception | None:
        try:
            self._entry_point.load()(request)  # loaded once; one that could not be is tried again
        except Refused as error:
            return error
        # Also SystemExit: whatever it is, it ends neither the thread nor the broker.
        except BaseException as error:
            log.exception("the tunnel handler %s failed", self.name)
            return RuntimeError(type(error).__name__)
        return None

    def _report(self, done: Done, error: Exception | None) -> None:
        self.waiting -= 1
        done(error)


class Tunnels:
    """The handlers of a broker, by data-name. They are looked for once, when the first request comes."""

    def __init__(self) -> None:
        self._post: Post | None = None
        self._workers: dict[str, list[Worker]] | None = None

    def start(self, post: Post) -> None:
        """`post` has something run on the broker's loop, from any thread."""
        self._post = post

    def find(self, name: str) -> list[Worker]:
        """The handlers of a name, in the order of the distributions that have them."""
        if self._workers is None:
            assert self._post is not None
            self._workers = {}
            for entry_point in sorted(entry_points(group=GROUP), key=lambda found: (found.name, _origin(found))):
                self._workers.setdefault(entry_point.name, []).append(Worker(entry_point, self._post))
        return self._workers.get(name, [])


def _origin(entry_point: EntryPoint) -> str:
    """The distribution that an entry point is of, "" where that is not known."""
    return "" if entry_point.dist is None else entry_point.dist.name

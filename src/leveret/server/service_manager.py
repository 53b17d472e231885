"""Notifications to systemd: ready, status, and the watchdog (`man sd_notify`)."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping
from typing import Final

logger = logging.getLogger("leveret.serve")

_READY: Final = "READY=1"
_ABSTRACT: Final = "@"
_PATHS: Final = ("/", _ABSTRACT)


class ServiceManager:
    """The service manager that has started this process. Without one, notifications have no effect.

    Args:
        environment: Environment variables: `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._socket: socket.socket | None = None
        microseconds = environment.get("WATCHDOG_USEC", "")
        is_mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._timeout = int(microseconds) / 1e6 if is_mine and microseconds.isdecimal() else 0.0
        self._failed = False

    def open(self) -> None:
        """Connect to the service manager, if there is one."""
        self._socket = _connect(self._address)

    def ready(self, status: str) -> None:
        """Report that the start, or the reload, has finished."""
        self._notify(_READY, f"STATUS={status}")

    def reloading(self) -> None:
        """Report that the configuration is being reloaded, until `ready`."""
        self._notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Report that the process stops."""
        self._notify("STOPPING=1", "STATUS=stopping")

    def status(self, status: str) -> None:
        """Report a state."""
        self._notify(f"STATUS={status}")

    async def keep_alive(self) -> None:
        """Notify the watchdog, in half of its timeout, until the task is cancelled. A stuck event loop does not."""
        while self._timeout and self._socket is not None:
            self._notify("WATCHDOG=1")
            await asyncio.sleep(self._timeout / 2)

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _notify(self, *assignments: str) -> None:
        if self._socket is None:
            return
        text = "\n".join(assignment.replace("\n", " ") for assignment in assignments)
        try:
            self._socket.send(text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            if not self._failed:
                logger.warning("cannot notify the service manager: %s", error)
            self._failed = True


def _connect(address: str) -> socket.socket | None:
    """Return a socket to the service manager; None without an address, or if it cannot be used."""
    if not address:
        return None
    if not address.startswith(_PATHS):
        logger.warning("cannot notify the service manager: unsupported NOTIFY_SOCKET '%s'; expected a path", address)
        return None
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        opened.connect("\0" + address[1:] if address.startswith(_ABSTRACT) else address)
    except OSError as error:
        opened.close()
        logger.warning("cannot notify the service manager: %s: %s", address, error.strerror)
        return None
    return opened

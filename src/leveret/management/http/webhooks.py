"""Deliveries of alerts to webhooks: POST requests to the URLs that the configuration allows, and to no others."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

import h11
import msgspec

from leveret.management.http.control import Row
from leveret.management.http.deliveries import Deliveries

logger = logging.getLogger("leveret.http")

# Maximum number of deliveries that wait for one URL. A further one replaces the oldest.
MAX_PENDING: Final = 200
MAX_ATTEMPTS: Final = 6
# Seconds for one attempt, from the connection to the head of the answer.
_TIMEOUT: Final = 10.0
# Seconds before the second attempt, which double with each further one.
RETRY_DELAY: Final = 1.0
_MAX_RETRY_DELAY: Final = 60.0
_MAX_HEAD: Final = 16 << 10
_READ: Final = 16 << 10
# Answers that are worth another attempt, beside those of 500 and more.
_RETRIED: Final = (408, 429)
_PORTS: Final = {"http": 80, "https": 443}


class Webhooks:
    """The webhooks of one broker.

    Each URL has a queue of its own, so that a receiver that does not answer delays no other.

    Args:
        urls: The URLs that may be called.
        retry_delay: Seconds before the second attempt.
    """

    def __init__(self, urls: Iterable[str], retry_delay: float = RETRY_DELAY) -> None:
        self._receivers = {url: _Receiver(url, retry_delay) for url in urls}

    def put(self, url: str, content: Row) -> None:
        """Deliver an object in the background, unless the URL is not allowed."""
        receiver = self._receivers.get(url)
        if receiver is None:
            logger.warning("a rule of alerts has a webhook that the setting management.alert_webhooks does not allow")
        else:
            receiver.put(msgspec.json.encode(content))

    def deliveries(self) -> list[Deliveries]:
        """Return what was sent to each URL."""
        return [receiver.deliveries for receiver in self._receivers.values()]

    async def run(self) -> None:
        """Deliver until the task is cancelled."""
        await asyncio.gather(*(receiver.run() for receiver in self._receivers.values()))


class _Receiver:
    """The receiver at one URL, and the deliveries that wait for it."""

    def __init__(self, url: str, retry_delay: float) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or _PORTS[parts.scheme]
        self._authority = parts.netloc
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._context = ssl.create_default_context() if parts.scheme == "https" else None
        # Without the path, which may have a secret.
        self._shown = f"{parts.scheme}://{parts.netloc}"
        self._retry_delay = retry_delay
        self.deliveries = Deliveries(kind="webhook", receiver=url)
        self._pending: deque[bytes] = deque()
        self._ready = asyncio.Event()

    def put(self, body: bytes) -> None:
        """Add a delivery."""
        if len(self._pending) >= MAX_PENDING:
            self._pending.popleft()
            self.deliveries.dropped += 1
            logger.warning("webhook %s: %d deliveries wait, the maximum; dropped the oldest", self._shown, MAX_PENDING)
        self._pending.append(body)
        self.deliveries.pending = len(self._pending)
        self._ready.set()

    async def run(self) -> None:
        """Deliver in order until the task is cancelled."""
        while True:
            await self._ready.wait()
            while self._pending:
                await self._deliver(self._pending.popleft())
                self.deliveries.pending = len(self._pending)
            self._ready.clear()

    async def _deliver(self, body: bytes) -> None:
        delay = self._retry_delay
        reason = ""
        for attempt in range(1, MAX_ATTEMPTS + 1):
            is_permanent = False
            try:
                status = await self._post(body)
            except (OSError, EOFError, UnicodeError, h11.ProtocolError) as error:
                reason = str(error) or type(error).__name__
            else:
                if 200 <= status < 300:
                    self.deliveries.delivered += 1
                    return
                reason = f"status {status}"
                is_permanent = status < 500 and status not in _RETRIED
            self.deliveries.note_error(reason)
            if is_permanent:
                break
            if attempt < MAX_ATTEMPTS:
                await asyncio.sleep(delay)
                delay = min(2 * delay, _MAX_RETRY_DELAY)
        self.deliveries.failed += 1
        logger.warning("webhook %s: cannot deliver an alert: %s; expected a status from 200 to 299", self._shown, reason)

    async def _post(self, body: bytes) -> int:
        """Send a request and return the status. A redirect is an answer like any other, and is not followed."""
        async with asyncio.timeout(_TIMEOUT):
            reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._context)
            try:
                client = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD)
                writer.write(self._request(client, body))
                await writer.drain()
                return await _status(client, reader)
            finally:
                writer.close()

    def _request(self, client: h11.Connection, body: bytes) -> bytes:
        headers = [
            ("host", self._authority),
            ("user-agent", "Leveret"),
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        events = (h11.Request(method="POST", target=self._target, headers=headers), h11.Data(body), h11.EndOfMessage())
        return b"".join(client.send(event) or b"" for event in events)


async def _status(client: h11.Connection, reader: asyncio.StreamReader) -> int:
    """Return the status of the answer, whose body is not read."""
    while True:
        event = client.next_event()
        if isinstance(event, h11.Response):
            return event.status_code
        if event is h11.NEED_DATA:
            client.receive_data(await reader.read(_READ))
        elif isinstance(event, h11.ConnectionClosed):
            raise EOFError("the receiver closed the connection without an answer")

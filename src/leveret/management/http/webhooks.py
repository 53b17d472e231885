"""Deliveries of alerts to webhooks: POST requests to the URLs that the configuration allows, and to no others."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpcore
import msgspec

from leveret.config import WebhookConfig
from leveret.management.http.control import Row
from leveret.management.http.deliveries import Deliveries
from leveret.management.http.outbox import Delivery, Outbox
from leveret.security.destinations import Destinations, resolve

logger = logging.getLogger("leveret.http")

# Maximum number of deliveries that wait for one URL. A further one replaces the oldest.
MAX_PENDING: Final = 200
MAX_ATTEMPTS: Final = 6
# Seconds for one attempt, from the connection to the head of the answer.
_TIMEOUT: Final = 10.0
# Seconds before the second attempt, which double with each further one.
RETRY_DELAY: Final = 1.0
_MAX_RETRY_DELAY: Final = 60.0
# Answers that are worth another attempt, beside those of 500 and more.
_RETRIED: Final = (408, 429)
_HEADERS: Final = {"user-agent": "Leveret", "content-type": "application/json", "connection": "close"}
_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([!-~](?:[ -~]*[!-~])?)")
_MAX_HEADERS: Final = 16 << 10
# Headers that describe the request itself.
_OWN_HEADERS: Final = frozenset({"host", "content-length", "transfer-encoding", *_HEADERS})


class Webhooks:
    """The webhooks of one broker.

    Each URL has a queue of its own, so that a receiver that does not answer delays no other.

    Args:
        webhooks: The URLs that may be called.
        path: The file of deliveries that wait; None if they may be lost.
        retry_delay: Seconds before the second attempt.
    """

    def __init__(
        self, webhooks: Iterable[WebhookConfig], path: Path | None = None, retry_delay: float = RETRY_DELAY
    ) -> None:
        self._outbox = Outbox(path, "deliveries to webhooks")
        self._receivers = {webhook.url: _Receiver(webhook, self._outbox, retry_delay) for webhook in webhooks}

    async def open(self) -> None:
        """Continue with the deliveries that wait since before the start, except to URLs that are no longer allowed."""
        for delivery in await self._outbox.open():
            receiver = self._receivers.get(delivery.receiver)
            if receiver is None:
                self._outbox.remove(delivery)
            else:
                receiver.put(delivery)

    def put(self, url: str, content: Row) -> None:
        """Deliver an object in the background, unless the URL is not allowed."""
        receiver = self._receivers.get(url)
        if receiver is None:
            logger.warning(
                "a rule of alerts has a webhook that the settings management.alert_webhooks and management.webhooks do not"
                " allow"
            )
        else:
            receiver.put(self._outbox.add(url, msgspec.json.encode(content)))

    def deliveries(self) -> list[Deliveries]:
        """Return what was sent to each URL."""
        return [receiver.deliveries for receiver in self._receivers.values()]

    async def run(self) -> None:
        """Deliver until the task is cancelled."""
        await asyncio.gather(self._outbox.run(), *(receiver.run() for receiver in self._receivers.values()))

    async def close(self) -> None:
        """Keep the deliveries that wait, after `run` has ended."""
        await self._outbox.close()


class _Receiver:
    """The receiver at one URL, and the deliveries that wait for it."""

    def __init__(self, webhook: WebhookConfig, outbox: Outbox, retry_delay: float) -> None:
        self._webhook = webhook
        self._outbox = outbox
        parts = urlsplit(webhook.url)
        self._is_tls = parts.scheme == "https"
        # Without the path, which may have a secret.
        self._shown = f"{parts.scheme}://{parts.netloc}"
        self._retry_delay = retry_delay
        self._pending: deque[Delivery] = deque()
        self._ready = asyncio.Event()
        self.deliveries = Deliveries(kind="webhook", receiver=webhook.url)

    def put(self, delivery: Delivery) -> None:
        """Add a delivery."""
        if len(self._pending) >= MAX_PENDING:
            self._outbox.remove(self._pending.popleft())
            self.deliveries.dropped += 1
            self.deliveries.pending -= 1
            logger.warning("webhook %s: %d deliveries wait, the maximum; dropped the oldest", self._shown, MAX_PENDING)
        self._pending.append(delivery)
        self.deliveries.pending += 1
        self._ready.set()

    async def run(self) -> None:
        """Deliver in order until the task is cancelled."""
        while True:
            await self._ready.wait()
            while self._pending:
                delivery = self._pending.popleft()
                await self._deliver(delivery.body)
                self.deliveries.pending -= 1
                self._outbox.remove(delivery)
            self._ready.clear()

    async def _deliver(self, body: bytes) -> None:
        delay = self._retry_delay
        for attempt in range(1, MAX_ATTEMPTS + 1):
            is_permanent = False
            try:
                status = await self._post(body)
            except (OSError, ValueError, httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
                self.deliveries.note_error(str(error) or type(error).__name__)
            else:
                if 200 <= status < 300:
                    self.deliveries.delivered += 1
                    return
                self.deliveries.note_error(f"status {status}; expected one from 200 to 299")
                is_permanent = status < 500 and status not in _RETRIED
            if is_permanent:
                break
            if attempt < MAX_ATTEMPTS:
                await asyncio.sleep(delay)
                delay = min(2 * delay, _MAX_RETRY_DELAY)
        self.deliveries.failed += 1
        logger.warning("webhook %s: cannot deliver an alert: %s", self._shown, self.deliveries.error)

    async def _post(self, body: bytes) -> int:
        """Send a request and return the status.

        A redirect is an answer like any other, and is not followed; the body of an answer is not read.
        """
        async with asyncio.timeout(_TIMEOUT):
            context, headers = await asyncio.to_thread(self._load)
            network = _AllowedNetworks(self._webhook.networks)
            async with (
                httpcore.AsyncConnectionPool(ssl_context=context, network_backend=network) as pool,
                pool.stream("POST", self._webhook.url, headers=list(headers.items()), content=body) as response,
            ):
                return response.status

    def _load(self) -> tuple[ssl.SSLContext | None, dict[str, str]]:
        """Read the certificates and the headers, which may have changed. Raises `OSError` and `ValueError`."""
        context = ssl.create_default_context(cafile=self._webhook.ca) if self._is_tls else None
        return context, {**_HEADERS, **_read_headers(self._webhook.headers_file)}


class _AllowedNetworks(httpcore.AsyncNetworkBackend):
    """Connects to addresses of some networks only."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._destinations = Destinations(networks)
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await resolve(host, port)
        allowed = [address for address in addresses if self._destinations.allows(address)]
        if not allowed:
            raise httpcore.ConnectError(
                f"'{host}' is {', '.join(addresses)}; expected an address in a network of the setting"
                " management.webhooks.NAME.networks"
            )
        for address in allowed[:-1]:
            try:
                return await self._backend.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._backend.connect_tcp(allowed[-1], port, timeout, local_address, socket_options)


def _read_headers(path: str | None) -> dict[str, str]:
    """Return the headers in a file, one per line. Errors do not show their values, which may be secrets."""
    headers: dict[str, str] = {}
    if path is None:
        return headers
    with Path(path).open("rb") as file:
        content = file.read(_MAX_HEADERS + 1)
    if len(content) > _MAX_HEADERS:
        raise ValueError(f"'{path}' has more than {_MAX_HEADERS} bytes; expected at most that many")
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            match = _HEADER.fullmatch(line.strip())
            if match is None or match[1].lower() in _OWN_HEADERS:
                raise ValueError(f"line {number} of '{path}' is no header for a request; expected NAME: VALUE")
            headers[match[1].lower()] = match[2]
    return headers

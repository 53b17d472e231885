"""Ranges of a stream over AMQP: packs of many messages, read on after a lost connection.

A pack says which offsets it covers, so a gap, an overlap or an end that comes too early is seen whatever happens in
between: it is an error, never a row too few or too many.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from leveret.client.amqp1 import Filter
from leveret.client.blocking.connection import Connection
from leveret.client.errors import (
    ChannelClosed,
    ConnectionClosed,
    ConnectionFailed,
    ConsumerCancelled,
    LinkClosed,
    NotFound,
    Timeout,
)
from leveret.client.message import Message
from leveret.segments.packed import PackDamaged, Packed
from leveret.spark.connection import PATIENCE, ControlClient, Endpoint
from leveret.spark.errors import DataLoss, OffsetError, ReadFailed, RequestRefused
from leveret.spark.losses import note_loss
from leveret.spark.topology import describe

log = logging.getLogger("leveret.spark")

# Packs that may be on their way: the broker makes the next ones while we turn the last ones into rows.
PREFETCH: Final = 4
# Seconds without a pack after which the broker is asked what is the matter.
QUIET: Final = 5.0

# What the arguments of a consumer are called over AMQP 1.0.
_FILTERS: Final = {"x-stream-offset": "rabbitmq:stream-offset-spec", "x-packed": "leveret:packed",
                   "x-packed-until": "leveret:packed-until",
                   "x-stream-filter-routing-key": "leveret:stream-filter-routing-key"}


class StreamFetch:
    """The messages of one stream from an offset to before another, as packs in order.

    routing_keys  the pattern of those that are sent at all
    loser  the holder under which the broker is told what was lost, None for none
    losses  a directory for files that say it, None for none
    lost   messages that retention had taken before they were read, where that is no error
    """

    def __init__(self, endpoint: Endpoint, stream: str, id: str, *, prefetch: int | None = None,
                 routing_keys: str | None = None, fail_on_data_loss: bool = True, loser: str | None = None,
                 losses: str | None = None, patience: float = PATIENCE) -> None:
        self.endpoint = endpoint
        self.stream = stream
        self.id = id
        self.prefetch = prefetch or PREFETCH
        self.routing_keys = routing_keys
        self.fail_on_data_loss = fail_on_data_loss
        self.loser = loser
        self.losses = losses
        self.patience = patience
        self.lost = 0
        # Everything before it was handed out, or is lost.
        self._at = 0

    def read(self, first: int, stop: int) -> Iterator[Packed]:
        """Packs that cover exactly these offsets; none of them for an empty range. `DataLoss`, `OffsetError`, `ReadFailed`
        and `BrokerUnreachable`."""
        self._at = first
        failing: float | None = None
        while self._at < stop:
            try:
                for pack in self._read_once(stop):
                    failing = None
                    yield pack
            except (ConnectionClosed, ConnectionFailed, ChannelClosed, Timeout) as error:
                now = time.monotonic()
                failing = failing or now
                if isinstance(error, NotFound) or now - failing > self.patience:
                    raise ReadFailed(f"stream {self.stream!r}, offsets {self._at} to {stop - 1}: {error}") from None
                log.warning("stream %r: reading on at offset %d after: %s", self.stream, self._at, error)
                # A broker that refuses us at once shall not be asked as fast as we can.
                time.sleep(0.05)

    def _read_once(self, stop: int) -> Iterator[Packed]:
        """Over one connection."""
        control = ControlClient(self.endpoint, "leveret-spark-read", self.patience)
        try:
            self._check(control, stop)
            if self._at >= stop:
                return
            consumer = self._consume(control.connection(), stop)
            while self._at < stop:
                try:
                    message: Message = consumer.next(QUIET)
                except Timeout:
                    self._check(control, stop)
                    raise
                except (ConsumerCancelled, LinkClosed) as error:
                    self._check(control, stop)
                    raise ReadFailed(f"stream {self.stream!r}, offset {self._at}: the broker cannot read it: {error}; its "
                                     "log says why") from None
                pack = self._pack(message.body, stop)
                message.ack()
                if pack is not None:
                    self._at = pack.next
                    yield pack
        finally:
            control.close()

    def _consume(self, connection: Connection, stop: int) -> Any:
        """A consumer of packs, begun."""
        arguments: dict[str, Any] = {"x-stream-offset": self._at, "x-packed": True, "x-packed-until": stop}
        if self.routing_keys is not None:
            arguments["x-stream-filter-routing-key"] = self.routing_keys
        if self.endpoint.protocol == "1.0":
            filters = [Filter(_FILTERS[name], value) for name, value in arguments.items()]
            return connection.receiver(self.stream, filters=filters, prefetch=self.prefetch).__enter__()
        channel = connection.channel(confirms=False)
        return channel.consume(self.stream, prefetch=self.prefetch, arguments=arguments).start()

    def _pack(self, data: bytes, stop: int) -> Packed | None:
        """The pack, once it is seen to go on where the one before ended; None where there is nothing left."""
        try:
            pack = Packed(data)
        except PackDamaged as error:
            raise ReadFailed(f"stream {self.stream!r} at offset {self._at}: {error}") from None
        if pack.first > self._at:
            self._lose(min(pack.first, stop))
            if pack.first >= stop:
                return None
        elif pack.first < self._at:
            raise ReadFailed(f"stream {self.stream!r}: the broker sent offset {pack.first} again, {self._at} was next")
        offsets = pack.rows.offsets
        if pack.next > stop or pack.next <= pack.first or (offsets and not (
                pack.first <= offsets[0] and offsets[-1] < pack.next and _grows(offsets))):
            raise ReadFailed(f"stream {self.stream!r}: the broker sent a pack of offsets {pack.first} to {pack.next - 1} "
                             f"that has others, or is not what was asked for ({self._at} to {stop - 1})")
        return pack

    def _check(self, control: ControlClient, stop: int) -> None:
        """See that the stream still is what it was, and leave out what retention has taken before us."""
        info = describe(control, self.stream)
        if info.id != self.id:
            raise OffsetError(f"stream {self.stream!r} was deleted and declared again while it was read (id {self.id}, now "
                              f"{info.id})")
        if stop > info.next:
            raise OffsetError(f"stream {self.stream!r} went back: offsets up to {stop - 1} were planned, and it ends at "
                              f"{info.next}")
        if info.first > self._at:
            self._lose(min(info.first, stop))

    def _lose(self, stop: int) -> None:
        count = stop - self._at
        what = (f"stream {self.stream!r}: {count} messages, from offset {self._at} to {stop - 1}, are gone: retention took "
                "them before they were read")
        if self.fail_on_data_loss:
            raise DataLoss(f"{what}; failOnDataLoss=false leaves them out")
        log.warning("%s; they are left out (failOnDataLoss=false)", what)
        if self.losses is not None:
            note_loss(self.losses, self.stream, self._at, stop)
        self._tell_lost(self._at, stop)
        self.lost += count
        self._at = stop

    def _tell_lost(self, first: int, stop: int) -> None:
        """So that the query counts it: it runs elsewhere, and hears of a task only whether it has failed."""
        if self.loser is None:
            return
        control = ControlClient(self.endpoint, "leveret-spark-read", self.patience)
        try:
            control.request("stream.lost", stream=self.stream, holder=self.loser, first=first, stop=stop)
        except RequestRefused as error:
            log.warning("stream %r: the loss is not counted: %s", self.stream, error)
        finally:
            control.close()


def _grows(offsets: list[int]) -> bool:
    # Without a gap, as nearly always, that needs no look at each.
    if offsets == list(range(offsets[0], offsets[0] + len(offsets))):
        return True
    return all(one < other for one, other in pairwise(offsets))

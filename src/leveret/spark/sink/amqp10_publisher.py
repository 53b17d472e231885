"""Publishes rows over AMQP 1.0, with a window of unsettled deliveries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.client.engine.amqp10.addresses import choose
from leveret.client.engine.amqp10.link.outgoing import Transfer
from leveret.client.engine.common.outgoing import Outgoing
from leveret.client.engine.common.publisher import PublisherCore
from leveret.client.errors import ChannelClosed, Error, InvalidMessage, Nacked, Returned, copy_error
from leveret.client.timeouts import DEFAULT
from leveret.spark.sink.amqp091_window import RefusedMessage
from leveret.spark.sink.batches import MAX_BATCHES, BatchEncoder, refused_rows
from leveret.spark.sink.rows import Rows
from leveret.wire.amqp0.commands import MANDATORY
from leveret.wire.amqp10.message import encode_data_head
from leveret.wire.record_batches import ADDRESS, EXCHANGE

if TYPE_CHECKING:
    from leveret.client._sync.session import Session
    from leveret.client.engine.amqp10.session.session import SessionCore


class _Window(PublisherCore):
    """Collects refused messages instead of raising their errors."""

    __slots__ = ("batches", "failure", "refused")

    def __init__(self, session: SessionCore, window: int) -> None:
        super().__init__(session, window)
        self.refused: list[RefusedMessage] = []
        # The rows of record batches in flight.
        self.batches: dict[Outgoing, Rows] = {}
        self.failure: Error | None = None

    def settled(self, outgoing: Outgoing, error: Error | None) -> None:
        super().settled(outgoing, None)
        rows = self.batches.pop(outgoing, None)
        if error is None:
            return
        if rows is not None:
            report = self.channel.read_report(error)
            if report is not None:
                self.refused += refused_rows(rows, report)
            elif self.failure is None:
                self.failure = ChannelClosed(str(error))
        elif isinstance(error, (Nacked, Returned)):
            assert isinstance(outgoing, Transfer)
            self.refused.append(RefusedMessage(_rows_of(outgoing), str(error), isinstance(error, Returned)))
        elif self.failure is None:
            self.failure = error


class Amqp10Publisher:
    """Like `Amqp091Publisher`. Exchanges and routing keys become addresses in the peer's format."""

    header_max = 1 << 30

    def __init__(self, session: Session, max_in_flight: int, prefix: str = "") -> None:
        self._session = session
        self._driver = session.connection.driver
        self._prefix = prefix
        self._addresses = choose("auto", session.connection.server_properties)
        self._targets: dict[tuple[str, str], str] = {}
        self._last = ""
        self._batches = BatchEncoder(prefix)
        self._batched = session.core.batches
        self._window = _Window(session.core, min(max_in_flight, MAX_BATCHES) if self._batched else max_in_flight)

    @property
    def refused(self) -> list[RefusedMessage]:
        found, self._window.refused = self._window.refused, []
        return found

    def publish(self, rows: Rows) -> None:
        """Send rows, in record batches if the broker supports them. Raises the client's errors."""
        if not self._batched:
            self._publish_singly(rows)
            return
        for chunk in self._batches.chunks(rows):
            batch = self._batches.encode(chunk)
            if batch is None:
                self._publish_singly(chunk)
                continue
            head = encode_data_head(len(batch))
            transfer = Transfer(EXCHANGE, "", ADDRESS, MANDATORY, [head, batch], len(head) + len(batch), batch)
            self._window.batches[transfer] = chunk
            self._send(transfer)

    def _publish_singly(self, rows: Rows) -> None:
        heads = [rows.properties] * len(rows) if isinstance(rows.properties, bytes) else rows.properties
        for exchange, key, head, body in zip(rows.exchanges, rows.routing_keys, heads, rows.bodies, strict=True):
            target = self._targets.get((exchange, key))
            if target is None:
                target = self._targets[exchange, key] = self._addresses.of_exchange(self._prefix + exchange, key)
            self._send(Transfer(exchange, key, target, MANDATORY, [head, body], len(head) + len(body), body))

    def _send(self, transfer: Transfer) -> None:
        window, driver = self._window, self._driver
        if transfer.target != self._last:
            # Each address has a link, and a link without credit would be overtaken by others.
            core = self._session.core
            with driver.lock:
                in_order = core.are_sent(self._last) and core.are_sent(transfer.target)
            if not in_order:
                self.flush()
            self._last = transfer.target
        while True:
            waiter = None
            with driver.lock:
                self._check()
                if window.channel.flowing:
                    if window.in_flight < window.window:
                        try:
                            window.publish(transfer)
                        except InvalidMessage as error:
                            window.refused.append(RefusedMessage(_rows_of(transfer), str(error), False))
                        except BaseException as error:
                            driver.interrupted(error)
                            raise
                        return
                    waiter = window.window_waiter()
            if waiter is None:
                self._session.wait_flowing()
            else:
                driver.wait(waiter, DEFAULT, "outcomes")

    def flush(self) -> None:
        """Wait until every delivery has an outcome. Raises the client's errors."""
        window = self._window
        while window.in_flight:
            with self._driver.lock:
                if not window.in_flight:
                    break
                waiter = window.idle_waiter()
            self._driver.wait(waiter, DEFAULT, "outcomes")
        self._check()

    def _check(self) -> None:
        if self._window.failure is not None:
            raise copy_error(self._window.failure)


def _rows_of(transfer: Transfer) -> Rows:
    return Rows([transfer.exchange], [transfer.routing_key], [transfer.payload[0]], [transfer.payload[1]])

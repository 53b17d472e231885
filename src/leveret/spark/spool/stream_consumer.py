"""Consumes streams of RabbitMQ over 0-9-1 for a spool, exactly once: the spool stores the offset that it has reached."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from leveret.client.errors import Timeout
from leveret.client.message import Message
from leveret.segments.typed_json import Document
from leveret.spark.connection import Endpoint
from leveret.spark.errors import DataLoss, OffsetError, OptionError
from leveret.spark.spool.consumer import (
    EXPECTED_MESSAGE_TIMEOUT,
    FIRST_MESSAGE_TIMEOUT,
    IDLE_TIMEOUT,
    STREAM_OFFSET,
    SpoolConsumer,
)

# Prefetch for finding the end of a stream, whose last chunk has at most this many messages in practice.
_END_PREFETCH: Final = 5000


class StreamConsumer(SpoolConsumer):
    """A consumer of a stream from the spool's position on.

    Each time it is opened, it reads the last message of the spool again, to find out whether the stream still is the one of
    the spool, and whether retention has removed messages after that one. A gap between offsets alone proves nothing, since
    RabbitMQ gives offsets to its own records as well, so the consumer is opened again after one.

    Args:
        endpoint: The broker.
        stream: Name of the stream.
        prefetch: Maximum number of unacked messages.
        position: Position of the last message in the spool, as from `position_of`; None to begin with the first message.
    """

    option = "stream"

    def __init__(self, endpoint: Endpoint, stream: str, prefetch: int, position: Document) -> None:
        super().__init__(endpoint, stream, prefetch)
        self._position = position
        # The consumer was opened again after gaps up to this offset.
        self._checked = -1

    def _subscription(self) -> dict[str, Any]:
        return _from("first" if self._position is None else int(self._position["offset"]))

    def _begin(self) -> None:
        if self._position is None:
            return
        expected = int(self._position["offset"])
        try:
            first: Message = self._consumer.next(EXPECTED_MESSAGE_TIMEOUT)
            while _offset_of(first, self._queue) < expected:  # in the same chunk
                first.ack()
                first = self._consumer.next(EXPECTED_MESSAGE_TIMEOUT)
        except Timeout:
            raise OffsetError(
                f"stream {self._queue!r} ends before offset {expected}, which the spool has: it was declared again, or the "
                "broker was restored from older data; use a new spoolDir and a new checkpoint"
            ) from None
        offset = _offset_of(first, self._queue)
        if offset == expected:
            if self.position_of([first]) != self._position:
                raise OffsetError(
                    f"stream {self._queue!r} has another message at offset {expected} than the spool: it was declared "
                    "again; use a new spoolDir and a new checkpoint"
                )
            first.ack()
            return
        if offset > expected + 1:
            raise DataLoss(
                f"stream {self._queue!r} lost messages: the spool ends at offset {expected}, and the stream begins at "
                f"{offset}; retention has removed the messages in between. To skip them, use a new spoolDir and a new "
                "checkpoint, and a longer retention for the future"
            )
        self._read_before.append(first)

    def _check(self, message: Message) -> None:
        _offset_of(message, self._queue)

    def _is_complete(self, messages: Sequence[Message]) -> bool:
        last = _offset_of(messages[-1], self._queue)
        before = _offset_of(messages[0], self._queue) - 1 if self._position is None else int(self._position["offset"])
        if last - before == len(messages) or last <= self._checked:
            return True
        self._checked = last
        return False

    def position_of(self, messages: Sequence[Message]) -> Document:
        """Return the position of the last message: its offset, and a hash to recognize it by."""
        last = messages[-1]
        digest = hashlib.blake2b(last.body, digest_size=16, key=b"position")
        return {"offset": _offset_of(last, self._queue), "digest": digest.hexdigest()}

    def reached(self, position: Document) -> None:
        self._position = position

    def available(self) -> int:
        """Return the number of offsets between the spool's position and the end of the stream."""
        self._open()
        assert self._connection is not None
        end = -1
        with self._connection.open_channel(confirms=False) as channel:
            consumer: Any = channel.consume(self._queue, prefetch=_END_PREFETCH, **_from("last")).start()
            try:
                while True:
                    message = consumer.next(FIRST_MESSAGE_TIMEOUT if end < 0 else IDLE_TIMEOUT)
                    end = _offset_of(message, self._queue)
                    message.ack()
            except Timeout:
                pass
        first = -1 if self._position is None else int(self._position["offset"])
        return max(end - first, 0)

    def _count_ready(self) -> int:
        # RabbitMQ's count is of all messages in the stream, and seconds old.
        return 0


def _from(offset: str | int) -> dict[str, Any]:
    """Return the arguments of `consume` for a start in a stream."""
    return {"arguments": {STREAM_OFFSET: offset}}


def _offset_of(message: Message, stream: str) -> int:
    offset = (message.headers or {}).get(STREAM_OFFSET)
    if not isinstance(offset, int):
        raise OptionError(f"option stream: {stream!r} is a queue, not a stream; use option queue")
    return offset

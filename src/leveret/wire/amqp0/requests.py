"""Methods wrapped in requests and responses, as Qpid's peers of 2007 number them (frame types 9 and 10, 0-9 only).

    request     request-id longlong, response-mark longlong, reserved long, then class, method and arguments
    response    response-id longlong, request-id longlong, batch-offset long, then the same

On each channel, each peer numbers its requests and its responses from 1. A response answers the request with its request-id
and the next batch-offset requests. The response-mark is the id of the last response received.

When a channel is opened again, the numbers may continue or restart: a first request with the id 1 restarts them for both
peers.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Final

from leveret.wire.amqp0.model import MethodSpec

# Bytes before the method.
NUMBERS_SIZE: Final = 20
_NUMBERS: Final = struct.Struct(">QQI")
_CLOSE: Final = "channel.close"
_CLOSE_OK: Final = "channel.close-ok"


class Ledger:
    """The numbers of one channel since it was opened.

    Attributes:
        requests_in: id of the last request received.
        responses_in: id of the last response received.
        requests_out: id of the last request sent.
        responses_out: id of the last response sent.
        awaited: ids and methods of the received requests that are unanswered.
    """

    __slots__ = ("awaited", "requests_in", "requests_out", "responses_in", "responses_out")

    def __init__(self) -> None:
        self.requests_in = 0
        self.responses_in = 0
        self.requests_out = 0
        self.responses_out = 0
        self.awaited: deque[tuple[int, MethodSpec]] = deque()

    def awaits(self, name: str) -> bool:
        """Return whether a request of this method is unanswered."""
        return any(spec.name == name for _, spec in self.awaited)

    def take(self, name: str, request: int) -> int:
        """Remove and return the id of the request that a response of this method answers.

        It is the request with the id `request` or, if that is 0, the oldest one with such a response.

        Returns:
            The id, or 0 if no request matches.
        """
        for at, (id, spec) in enumerate(self.awaited):
            if name in spec.responses and request in (0, id):
                del self.awaited[at]
                return id
        return 0


class Numbers:
    """The request and response numbers of all channels of a connection."""

    def __init__(self) -> None:
        # The last ledger of a channel is for received methods, the first for sent ones. A channel has more than one if it
        # was opened again before its close was answered.
        self._channels: dict[int, deque[Ledger]] = {}

    def _of(self, number: int) -> deque[Ledger]:
        ledgers = self._channels.get(number)
        if ledgers is None:
            ledgers = self._channels[number] = deque((Ledger(),))
        return ledgers

    # Receiving

    def request_received(self, number: int, data: bytes, at: int, opens: bool) -> tuple[int, str]:
        """Return the id of a request whose numbers are at `at`, and an error text or "".

        `opens` is set if the method opens a closed channel.
        """
        id: int
        mark: int
        id, mark, _ = _NUMBERS.unpack_from(data, at)
        ledgers = self._of(number)
        if opens and ledgers[-1].requests_in:
            if id == 1:
                self._renew(ledgers)
            elif not ledgers[-1].awaits(_CLOSE):
                ledgers[-1].awaited.clear()
        ledger = ledgers[-1]
        if id != ledger.requests_in + 1:
            return id, f"request {id} on channel {number}, expected {ledger.requests_in + 1}"
        ledger.requests_in = id
        if mark > ledger.responses_out and not opens:
            return id, f"request {id} on channel {number} has response-mark {mark}, expected at most {ledger.responses_out}"
        return id, ""

    def _renew(self, ledgers: deque[Ledger]) -> None:
        if not ledgers[-1].awaits(_CLOSE):
            ledgers.pop()
        ledgers.append(Ledger())

    def await_answer(self, number: int, id: int, spec: MethodSpec) -> None:
        """Record a request that must be answered."""
        self._of(number)[-1].awaited.append((id, spec))

    def response_received(self, number: int, data: bytes, at: int) -> tuple[int, int, str]:
        """Return the ids of the first and the last request that a response answers, and an error text or "".

        The numbers of the response are at `at`.
        """
        id: int
        first: int
        offset: int
        id, first, offset = _NUMBERS.unpack_from(data, at)
        last = first + offset
        ledger = self._of(number)[-1]
        if id != ledger.responses_in + 1:
            return first, last, f"response {id} on channel {number}, expected {ledger.responses_in + 1}"
        ledger.responses_in = id
        if not 1 <= first <= last <= ledger.requests_out:
            asked = f"request {first}" if last == first else f"requests {first} to {last}"
            return first, last, f"response to {asked} on channel {number}; requests sent so far: {ledger.requests_out}"
        return first, last, ""

    # Sending

    def request(self, number: int) -> tuple[int, bytes]:
        """Return the id of the next request, and its encoded numbers."""
        ledger = self._of(number)[0]
        ledger.requests_out += 1
        return ledger.requests_out, _NUMBERS.pack(ledger.requests_out, ledger.responses_in, 0)

    def renew(self, number: int) -> None:
        """Restart the numbers, because we open the channel."""
        self._channels[number] = deque((Ledger(),))

    def response(self, number: int, name: str, request: int) -> bytes:
        """Return the encoded numbers of a response (see `Ledger.take`); empty if no request matches."""
        ledgers = self._of(number)
        ledger = ledgers[0]
        answered = ledger.take(name, request)
        if not answered:
            return b""
        ledger.responses_out += 1
        if name == _CLOSE_OK:
            while ledger.awaited and ledger.awaited[0][0] < answered:
                ledger.awaited.popleft()
            if len(ledgers) > 1:
                ledgers.popleft()
        return _NUMBERS.pack(ledger.responses_out, answered, 0)

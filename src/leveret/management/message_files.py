"""Files of messages: one JSON object per line, or an array with one message per line.

Nothing here does I/O: the caller executes the calls, and reads or writes the file.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from leveret.management.definitions.conversation import Call, Row
from leveret.management.descriptions import MAX_EXPORTED_IDS

Form: TypeAlias = Literal["lines", "array"]

# Messages of one request of an export, and the limits of its work.
_PAGE: Final = 100
_LIMITS: Final[Row] = {"examine": 100_000, "examine_bytes": 256 << 20, "seconds": 1.0}
# Bytes of a range of a payload, of which the broker sends at most 1 MiB: base64 of several ranges is that of the payload.
_RANGE: Final = 3 * (256 << 10)
# Maximum bytes of a line of an import, and of its message as ASCII JSON: the broker accepts requests of 1 MiB.
MAX_LINE: Final = 1 << 20
MAX_MESSAGE: Final = 960 << 10
# Messages of one request of an import, and about their bytes.
BATCH: Final = 200
BATCH_BYTES: Final = 512 << 10
MAX_PROBLEMS: Final = 100
# The result of a batch without messages.
NOTHING: Final[Row] = {"processed": 0, "imported": 0, "unroutable": [], "refused": [], "stopped": ""}
UNROUTABLE: Final = "no queue would get the message"


# Export


class Incomplete(Exception):
    """A message left its queue while its payload was read. The export ends in the middle of a line."""


class Step(NamedTuple):
    """Content to write, and then a call to execute."""

    content: bytes
    call: Call


# The calls of an export. It receives their results, None for a message that does not exist any more, and returns the rest.
Steps: TypeAlias = Generator[Step, Any, bytes]


class Export:
    """An export of messages.

    Args:
        wanted: The fields of `messages.export`: the queue and the conditions.
        ids: The ids of messages; None for all that meet the conditions.
        limit: The maximum number of messages; None for all.
        form: The form of the file.
        reads_ranges: Whether payloads that a reply does not have are read.

    Attributes:
        messages: Messages so far.
        examined: Messages that were looked at.
        skipped: Messages that do not match because their JSON is too large to be compared.
        missing: Messages that are not in the queue any more.
    """

    def __init__(
        self,
        wanted: Row,
        *,
        ids: Sequence[int] | None = None,
        limit: int | None = None,
        form: Form = "lines",
        reads_ranges: bool = True,
    ) -> None:
        self._wanted = wanted
        self._ids = ids
        self._limit = limit
        self._form = form
        self._reads_ranges = reads_ranges
        self._queue_id = 0
        self._cursor: str | None = ""
        self.messages = self.examined = self.skipped = self.missing = 0

    def steps(self) -> Steps:
        """Yield the steps. Raises `Incomplete`."""
        content = b"[\n" if self._form == "array" else b""
        for arguments in self._pages():
            page = yield Step(content, Call("messages.export", arguments))
            content = b""
            self._cursor = page["cursor"]
            self._queue_id = page["queue_id"]
            self.examined += page["examined"]
            self.skipped += page["skipped"]
            self.missing += page["missing"]
            for message in page["messages"]:
                if message["payload"] or not message["payload_bytes"] or not self._reads_ranges:
                    content += self._line(_encode(message))
                else:
                    content = yield from self._large(content, message)
        return content + (b"\n]\n" if self._form == "array" else b"")

    def _pages(self) -> Iterator[Row]:
        """Yield the arguments of the calls, until there are no more messages."""
        if self._ids is not None:
            for at in range(0, len(self._ids), MAX_EXPORTED_IDS):
                yield {**self._wanted, "ids": list(self._ids[at : at + MAX_EXPORTED_IDS])}
            return
        while self._cursor is not None and (self._limit is None or self.messages < self._limit):
            count = _PAGE if self._limit is None else min(_PAGE, self._limit - self.messages)
            # The cursor continues behind the messages that the first request has skipped.
            wanted = {**self._wanted, "offset": 0} if self._cursor else self._wanted
            yield {**wanted, **_LIMITS, "count": count, "cursor": self._cursor}

    def _line(self, encoded: bytes) -> bytes:
        """Return a message as a line, and count it."""
        begin, end = self._around()
        self.messages += 1
        return begin + encoded + end

    def _around(self) -> tuple[bytes, bytes]:
        """Return what precedes and follows the next message."""
        if self._form == "lines":
            return b"", b"\n"
        return (b",\n" if self.messages else b""), b""

    def _large(self, content: bytes, message: Row) -> Generator[Step, Any, bytes]:
        """Yield the steps to write a message whose payload is read in ranges. Return the rest of its line."""
        first = yield Step(content, self._range(message, 0))
        if first is None:
            self.missing += 1
            return b""
        data = base64.b64decode(first["payload"])
        if len(data) == first["payload_bytes"]:
            return self._line(_encode(_with_payload(message, data)))
        begin, end = self._around()
        content = begin + _encode({**message, "payload_encoding": "base64"}).removesuffix(b'""}') + b'"'
        at = 0
        found: Row | None = first
        while True:
            if found is None or not found["payload"]:
                raise Incomplete(f"message {message['id']} left the queue while its payload was read")
            content += found["payload"].encode()
            at += len(base64.b64decode(found["payload"]))
            if at >= message["payload_bytes"]:
                break
            found = yield Step(content, self._range(message, at))
            content = b""
        self.messages += 1
        return content + b'"}' + end

    def _range(self, message: Row, first: int) -> Call:
        wanted = {"vhost": self._wanted["vhost"], "queue": self._wanted["queue"], "queue_id": self._queue_id}
        return Call("messages.payload", {**wanted, "id": message["id"], "first": first, "length": _RANGE})


def _with_payload(message: Row, data: bytes) -> Row:
    try:
        return {**message, "payload": data.decode(), "payload_encoding": "string"}
    except UnicodeDecodeError:
        return {**message, "payload": base64.b64encode(data).decode(), "payload_encoding": "base64"}


def _encode(message: Row) -> bytes:
    """Return a message as JSON, with its payload at the end."""
    payload = message.pop("payload")
    return msgspec.json.encode({**message, "payload": payload})


# Import


class Problem(NamedTuple):
    """A line whose message was not imported, and the reason."""

    line: int
    reason: str


class Batch(NamedTuple):
    """Messages of one request.

    Attributes:
        messages: The messages.
        lines: The number of the line of each message.
        problems: The lines among them that have no message.
        last: The number of the last line.
    """

    messages: list[Row]
    lines: list[int]
    problems: list[Problem]
    last: int


class Import:
    """An import of messages.

    Attributes:
        lines: The last line that was processed. The messages of later lines were not published.
        imported: Messages that a queue got.
        unroutable: Messages that no queue got.
        refused: Lines whose messages were refused.
        uncertain: The first and the last line of messages of which it is unknown whether they were published.
        stopped: Why the rest was not published; "" if all lines were processed.
    """

    def __init__(self) -> None:
        self.lines = self.imported = self.unroutable = self.refused = 0
        self.uncertain: tuple[int, int] | None = None
        self.stopped = ""
        self._problems: list[Problem] = []
        # The line that is being read: its number, its parts and their bytes.
        self._number = 1
        self._begun: list[bytes] = []
        self._size = 0
        self._batch = Batch([], [], [], 0)
        self._batch_bytes = 0

    def feed(self, data: bytes) -> Iterator[Batch]:
        """Read a part of the file, and yield the batches that are complete."""
        *ended, rest = data.split(b"\n")
        for part in ended:
            self._add(part)
            yield from self._end_line()
        self._add(rest)

    def finish(self) -> Iterator[Batch]:
        """Yield the last batch."""
        if self._size:
            yield from self._end_line()
        if self._batch.messages or self._batch.problems or self._number - 1 > self.lines:
            yield self._take(self._number - 1)

    def answered(self, batch: Batch, result: Row) -> None:
        """Count the result of a batch."""
        processed = result["processed"]
        self.stopped = result["stopped"]
        self.lines = batch.last if processed == len(batch.lines) else batch.lines[processed] - 1
        self.imported += result["imported"]
        self.unroutable += len(result["unroutable"])
        found = [Problem(batch.lines[index], UNROUTABLE) for index in result["unroutable"]]
        refused = [Problem(batch.lines[item["index"]], item["reason"]) for item in result["refused"]]
        refused += [problem for problem in batch.problems if problem.line <= self.lines]
        self.refused += len(refused)
        self._problems = sorted([*self._problems, *found, *refused])[:MAX_PROBLEMS]

    def stop(self, reason: str) -> None:
        """End before the next batch."""
        self.stopped = reason

    def lose(self, batch: Batch, reason: str) -> None:
        """End because the result of a batch is unknown."""
        self.stopped = reason
        self.lines = batch.lines[0] - 1
        self.uncertain = batch.lines[0], batch.lines[-1]

    def summary(self) -> str:
        """Return the counts as a sentence."""
        text = (
            f"{self.imported} messages imported, {self.unroutable} unroutable, {self.refused} lines refused;"
            f" {self.lines} lines processed"
        )
        if self.uncertain is None:
            return text
        return f"{text}; the messages of lines {self.uncertain[0]} to {self.uncertain[1]} may be published or not"

    def report(self) -> Row:
        """Return the counts and the first problems."""
        return {
            "lines": self.lines,
            "imported": self.imported,
            "unroutable": self.unroutable,
            "refused": self.refused,
            "problems": [problem._asdict() for problem in self._problems],
            "uncertain": self.uncertain,
            "stopped": self.stopped,
        }

    def _add(self, part: bytes) -> None:
        """Add a part to the line that is being read. Of a line that is too long, only the size is kept."""
        self._size += len(part)
        if self._size > MAX_LINE:
            self._begun.clear()
        elif part:
            self._begun.append(part)

    def _end_line(self) -> Iterator[Batch]:
        number, size = self._number, self._size
        line = b"".join(self._begun).strip().removesuffix(b",")
        self._begun = []
        self._size = 0
        self._number += 1
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        try:
            message, encoded = _decode(line, size)
        except ValueError as error:
            self._batch.problems.append(Problem(number, str(error)))
        else:
            if self._batch.messages and self._batch_bytes + encoded > BATCH_BYTES:
                yield self._take(number - 1)
            if message is not None:
                self._batch.messages.append(message)
                self._batch.lines.append(number)
                self._batch_bytes += encoded
        if len(self._batch.messages) + len(self._batch.problems) >= BATCH:
            yield self._take(number)

    def _take(self, last: int) -> Batch:
        batch = self._batch._replace(last=last)
        self._batch = Batch([], [], [], 0)
        self._batch_bytes = 0
        return batch


def _decode(line: bytes, size: int) -> tuple[Row | None, int]:
    """Return the message of a line and its size as ASCII JSON; None for a line without one. Raises `ValueError`."""
    if size > MAX_LINE:
        raise ValueError(f"the line has {size} bytes; expected at most {MAX_LINE}: publish the message with a client")
    if line in (b"", b"[", b"]"):
        return None, 0
    try:
        message = msgspec.json.decode(line)
        encoded = len(json.dumps(message))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"invalid JSON: {error}") from None
    except RecursionError:
        raise ValueError("invalid JSON: it is nested too deep") from None
    if not isinstance(message, dict):
        raise ValueError("expected one message per line, as a JSON object")
    if encoded > MAX_MESSAGE:
        raise ValueError(f"the message has {encoded} bytes; expected at most {MAX_MESSAGE}: publish it with a client")
    return message, encoded

"""The wire state of a channel, and the content being received on it (0-9-1 section 4.2.6)."""

from __future__ import annotations

from typing import Final

from leveret.wire.amqp0 import states
from leveret.wire.amqp0.commands import Body, Command, ContentMethod, ContentPart, Deliver, Publish
from leveret.wire.amqp0.model import MethodSpec
from leveret.wire.amqp0.values import Arguments

# Kinds of frames that may come next on the channel.
METHOD: Final = 0
HEADER: Final = 1
BODY: Final = 2
# The channel has failed or is being closed: everything except close and close-ok is discarded.
NOTHING: Final = 3

# Smaller payloads of body frames are joined: a list of single bytes would need many times their size.
_SMALL: Final = 4096
# Shared by all channels that receive no method with content.
NO_ARGUMENTS: Final[Arguments] = {}


class WireChannel:
    """A channel that is not closed.

    Most attributes describe the partially received content: `address`, `flags`, `consumer_tag`, `delivery_tag` and
    `redelivered` are fields of `basic.publish` or `basic.deliver`.

    Attributes:
        state: CHANNEL_OPEN, CHANNEL_FAILED or CHANNEL_CLOSING of `states`.
        stage: the kind of frame that may come next.
        owes_close_ok: whether the peer's close arrived before ours was sent.
        spec: the method of the content; None for `basic.publish` and `basic.deliver`.
        arguments: the arguments of any other method.
        remaining: bytes of the body that have not been received.
        parts: parts of the body that have been received; None if there are none.
        small: the end of the body so far, in pieces too small to be parts; None if there is none.
        spooling: whether the body is forwarded as it arrives.
    """

    __slots__ = (
        "address",
        "arguments",
        "consumer_tag",
        "delivery_tag",
        "flags",
        "header",
        "number",
        "owes_close_ok",
        "parts",
        "publish",
        "redelivered",
        "remaining",
        "size",
        "small",
        "spec",
        "spooling",
        "stage",
        "state",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = states.CHANNEL_OPEN
        self.stage = METHOD
        self.owes_close_ok = False
        self.spec: MethodSpec | None = None
        self.address = b""
        self.flags = 0
        self.consumer_tag = b""
        self.delivery_tag = 0
        self.redelivered = False
        self.arguments = NO_ARGUMENTS
        self.header = b""
        self.size = 0
        self.remaining = 0
        self.parts: list[bytes] | None = None
        self.small: bytearray | None = None
        self.publish: Publish | None = None
        self.spooling = False

    def close(self, state: int) -> None:
        """Drop the partial content, and discard all further input."""
        self.state = state
        self.stage = NOTHING
        self.header = b""
        self.parts = None
        self.small = None
        self.arguments = NO_ARGUMENTS
        self.publish = None
        self.spooling = False

    def add(self, data: bytes, out: list[Command]) -> None:
        """Add the payload of a body frame, of at most `remaining` bytes. Append complete content to `out`."""
        self.remaining -= len(data)
        if len(data) >= _SMALL:
            self._flush_small(out)
            self._append(data, out)
        elif data:
            small = self.small
            if small is None:
                small = self.small = bytearray()
            small += data
            if len(small) >= _SMALL:
                self._flush_small(out)
        if self.remaining == 0:
            self.finish(out)

    def _append(self, data: bytes, out: list[Command]) -> None:
        parts = self.parts
        if self.spooling:
            out.append(ContentPart(self.number, data))
        elif parts is None:
            self.parts = [data]
        else:
            parts.append(data)

    def _flush_small(self, out: list[Command]) -> None:
        small = self.small
        if small is not None:
            self.small = None
            self._append(bytes(small), out)

    def finish(self, out: list[Command]) -> None:
        """Append the command of the complete content."""
        self._flush_small(out)
        body: Body
        parts = self.parts
        if parts is None:
            body = b""
        else:
            body = parts[0] if len(parts) == 1 else parts
            self.parts = None
        self.stage = METHOD
        publish = self.publish
        spec = self.spec
        if publish is not None:
            publish.body = body
            publish.spooled = self.spooling
            out.append(publish)
            self.publish = None
            self.spooling = False
        elif spec is None:
            out.append(
                Deliver(
                    self.number,
                    self.consumer_tag,
                    self.delivery_tag,
                    self.redelivered,
                    self.address,
                    self.header,
                    self.size,
                    body,
                )
            )
        else:
            method = ContentMethod(
                self.number, spec.name, spec.class_id, spec.method_id, self.arguments, self.header, self.size, body
            )
            method.spooled = self.spooling
            out.append(method)
            self.arguments = NO_ARGUMENTS
            self.spooling = False
        self.header = b""

"""The commands that AMQP 0-x peers exchange, after framing.

`Engine.receive` converts bytes to a list of commands. A method with content is one object: method frame, header frame and
body frames are combined while parsing. The four commands of the hot path (`Publish`, `Deliver`, `Ack`, `Nack`) have their
own classes; every other method is a `Method`, or a `ContentMethod` if it has content.

Strings of the hot path stay `bytes` exactly as received. Those of `Method.arguments` are `str`, decoded as UTF-8 with
`surrogateescape`, so that any bytes survive a round trip.
"""

from __future__ import annotations

from typing import Final, Union

from leveret.wire.amqp0.values import Arguments

# A body as received: one piece, or the payloads of its body frames in order. Callers must handle both.
Body = Union[bytes, list[bytes]]

PUBLISH: Final = 1
ACK: Final = 2
NACK: Final = 3
METHOD: Final = 4
CONTENT_METHOD: Final = 5
DELIVER: Final = 6
ERROR: Final = 7
CONTENT_START: Final = 8
CONTENT_PART: Final = 9

MANDATORY: Final = 1
IMMEDIATE: Final = 2
# In 0-9, the access ticket is above the flags of a publish.
TICKET_SHIFT: Final = 2

CONNECTION_SCOPE: Final = 0
CHANNEL_SCOPE: Final = 1
# The peer does not speak the protocol: the socket is closed after the pending output, without a close method.
SOCKET_SCOPE: Final = 2


class Command:
    """Base class of commands. `kind` is one of the constants above, for dispatch without `isinstance`."""

    __slots__ = ("channel", "kind")

    def __init__(self, kind: int, channel: int) -> None:
        self.kind = kind
        self.channel = channel


class Publish(Command):
    """`basic.publish` with its content (0-9-1 section 1.8.3.7).

    One skip-scan of the header finds the properties that routing and queueing need. Others are decoded on demand.

    Attributes:
        address: the short strings `exchange` and `routing-key` as received, each a length byte and its bytes.
        flags: MANDATORY | IMMEDIATE, as on the wire; in 0-9 also the access ticket, shifted by TICKET_SHIFT.
        header: payload of the header frame as received (class, weight, body size, property flags, properties).
        size: size of the body in bytes.
        body: the body; empty if `spooled`.
        delivery_mode: 0 if absent.
        priority: -1 if absent.
        expiration: None if absent.
        user_id: None if absent.
        headers_at: offset in `header` of the length of the `headers` table; -1 if absent.
        spooled: whether the body preceded the publish in `ContentPart`s.
    """

    __slots__ = (
        "address",
        "body",
        "delivery_mode",
        "expiration",
        "flags",
        "header",
        "headers_at",
        "priority",
        "size",
        "spooled",
        "user_id",
    )

    def __init__(
        self,
        channel: int,
        address: bytes,
        flags: int,
        header: bytes,
        size: int,
        body: Body,
        delivery_mode: int,
        priority: int,
        expiration: bytes | None,
        user_id: bytes | None,
        headers_at: int,
    ) -> None:
        self.kind = PUBLISH
        self.channel = channel
        self.address = address
        self.flags = flags
        self.header = header
        self.size = size
        self.body = body
        self.delivery_mode = delivery_mode
        self.priority = priority
        self.expiration = expiration
        self.user_id = user_id
        self.headers_at = headers_at
        self.spooled = False


class Deliver(Command):
    """`basic.deliver` with its content, as a client receives it. Address, header, size and body are as in `Publish`."""

    __slots__ = ("address", "body", "consumer_tag", "delivery_tag", "header", "redelivered", "size")

    def __init__(
        self,
        channel: int,
        consumer_tag: bytes,
        delivery_tag: int,
        redelivered: bool,
        address: bytes,
        header: bytes,
        size: int,
        body: Body,
    ) -> None:
        self.kind = DELIVER
        self.channel = channel
        self.consumer_tag = consumer_tag
        self.delivery_tag = delivery_tag
        self.redelivered = redelivered
        self.address = address
        self.header = header
        self.size = size
        self.body = body


class Ack(Command):
    """`basic.ack`, in both directions."""

    __slots__ = ("delivery_tag", "multiple")

    def __init__(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        self.kind = ACK
        self.channel = channel
        self.delivery_tag = delivery_tag
        self.multiple = multiple


class Nack(Command):
    """`basic.nack` in both directions, and `basic.reject` (`is_reject`, never multiple)."""

    __slots__ = ("delivery_tag", "is_reject", "multiple", "requeue")

    def __init__(self, channel: int, delivery_tag: int, multiple: bool, requeue: bool, is_reject: bool) -> None:
        self.kind = NACK
        self.channel = channel
        self.delivery_tag = delivery_tag
        self.multiple = multiple
        self.requeue = requeue
        self.is_reject = is_reject


class Method(Command):
    """Any other method without content.

    Attributes:
        name: the full name, such as "queue.declare".
        arguments: all fields except reserved ones, by Python name (with underscores instead of hyphens).
        request: id of the request that contained it (see `requests`); 0 without requests.
        replied_first: first of our requests that it replies to; 0 for none.
        replied_last: last of our requests that it replies to; 0 for none.
    """

    __slots__ = ("arguments", "class_id", "method_id", "name", "replied_first", "replied_last", "request")

    def __init__(self, kind: int, channel: int, name: str, class_id: int, method_id: int, arguments: Arguments) -> None:
        self.kind = kind
        self.channel = channel
        self.name = name
        self.class_id = class_id
        self.method_id = method_id
        self.arguments = arguments
        self.request = 0
        self.replied_first = 0
        self.replied_last = 0


class ContentMethod(Method):
    """Any other method with content: `basic.return`, `basic.get-ok`, and those of 0-9's file and stream classes."""

    __slots__ = ("body", "header", "size", "spooled")

    def __init__(
        self,
        channel: int,
        name: str,
        class_id: int,
        method_id: int,
        arguments: Arguments,
        header: bytes,
        size: int,
        body: Body,
    ) -> None:
        super().__init__(CONTENT_METHOD, channel, name, class_id, method_id, arguments)
        self.header = header
        self.size = size
        self.body = body
        # As in `Publish`.
        self.spooled = False


class ContentStart(Command):
    """A publish whose body is larger than the engine's `spool_threshold` has begun: its header is complete.

    The body follows in `ContentPart`s, and then the `Publish` itself, with `spooled` set. The same applies to a
    `file.stage` of any size if the engine `spools_uploads`: then `publish` is None and `method` is set.
    """

    __slots__ = ("method", "publish")

    def __init__(self, channel: int, publish: Publish | None, method: ContentMethod | None = None) -> None:
        self.kind = CONTENT_START
        self.channel = channel
        self.publish = publish
        self.method = method


class ContentPart(Command):
    """The payload of a body frame of the content being spooled on this channel."""

    __slots__ = ("data",)

    def __init__(self, channel: int, data: bytes) -> None:
        self.kind = CONTENT_PART
        self.channel = channel
        self.data = data


class Error(Command):
    """A protocol violation by the peer. At connection or socket scope, it is the last command of its list.

    Attributes:
        scope: CONNECTION_SCOPE, CHANNEL_SCOPE or SOCKET_SCOPE.
        code: the reply code (0-9-1 section 1.2).
        class_id: class of the failing method, or 0.
        method_id: index of the failing method, or 0.
    """

    __slots__ = ("class_id", "code", "method_id", "scope", "text")

    def __init__(self, channel: int, scope: int, code: int, text: str, class_id: int = 0, method_id: int = 0) -> None:
        self.kind = ERROR
        self.channel = channel
        self.scope = scope
        self.code = code
        self.text = text
        self.class_id = class_id
        self.method_id = method_id

"""Sequences of AMQP 0-9 frames, valid and invalid, from a seed: for sessions in memory and over sockets.

`Fuzzer` plays a client. `step` returns its next input. `received` takes the broker's output and answers it more or less
correctly, so that the session gets far; it fails on output that no client could read.
"""

from __future__ import annotations

import random
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.support.peers import codec09 as codec
from tests.support.peers.codec09 import INLINE, METHODS, REFERENCE, Body, Method
from tests.support.peers.framing import BODY_FRAME, HEADER_FRAME, HEARTBEAT_FRAME, METHOD_FRAME, frame_bytes

CHANNELS = (1, 2, 3)
STRANGE_CHANNELS = (0, 9, 2047, 2048, 65535)
QUEUES = ("a", "a", "b", "b", "f", "", "missing", "amq.mine", "x" * 255, "\udcff")
EXCHANGES = ("", "", "a", "x", "amq.direct", "amq.topic", "amq.headers", "amq.mine", "missing", "\udcff")
TAGS = ("", "one", "two", "three")
IDENTIFIERS = ("", "i", "i", "j", "k", "y" * 255)
REALMS = ("/open", "/open", "/closed", "/unknown", "")
TYPES = ("direct", "fanout", "topic", "headers", "nonsense", "")
TABLES: tuple[dict[str, Any], ...] = (
    {},
    {},
    {},
    {},
    {"x-max-length": 2},
    {"x-max-length": 1, "x-overflow": "reject-publish"},
    {"x-message-ttl": 5},
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"},
    {"x-max-priority": 3},
    {"x-expires": 50},
    {"x-queue-type": "quorum"},
    {"x-queue-type": "stream"},
    {"x-match": "any", "n": 1},
    {"x-max-length-bytes": 100},
    {"x-single-active-consumer": 1},
    {"x-delivery-limit": 1},
    {"alternate-exchange": "amq.fanout"},
    {"nested": {"a": {"b": 1}}},
    {"x-max-length": "many"},
    {"x-queue-type": "none"},
    {"\udcff": "\udcff"},
)
SIZES = (0, 0, 1, 1, 10, 100, 4000, 9000)
# Values of a field by its name; other fields use their type.
BY_NAME: dict[str, tuple[Any, ...]] = {
    "queue": QUEUES,
    "exchange": EXCHANGES,
    "routing_key": (*QUEUES, "#", "a.*"),
    "consumer_tag": TAGS,
    "destination": (*TAGS, *EXCHANGES),
    "identifier": IDENTIFIERS,
    "reference": IDENTIFIERS,
    "dtx_identifier": IDENTIFIERS,
    "realm": REALMS,
    "ticket": (0, 0, 0, 0, 0, 0, 1, 2, 3, 65535),
    "type": TYPES,
    "arguments": TABLES,
    "filter": TABLES,
    "meta_data": TABLES,
    "application_headers": TABLES,
    "server_properties": TABLES,
    "client_properties": TABLES,
    "delivery_tag": (0, 1, 1, 2, 3, 4, 5, 1 << 40, (1 << 64) - 1),
    "content_size": (0, 1, 10, 100, 4000, 9000, 1 << 40),
    "staged_size": (0, 0, 0, 1, 10, 1 << 63),
    "prefetch_count": (0, 1, 2, 65535),
    "prefetch_size": (0, 1, 5000),
    "consume_rate": (0, 0, 1, 10_000_000),
    "virtual_host": ("/", "/none"),
    "passive": (False,) * 5 + (True,),
    "internal": (False,) * 7 + (True,),
    "nowait": (False,) * 5 + (True,),
    "exclusive": (False,) * 4 + (True,),
    "out_of_band": ("",) * 9 + ("UDP",),
    "bytes": (b"", b"x", b"y" * 3000),
    "code": (0, 1, 2, 65535),
    "ttl": (0, 0, 0, 1, 5, 1 << 63),
    "reply_code": (200, 0, 541, 65535),
    "xid": IDENTIFIERS,
    "channel_id": (b"", b"none"),
    "active": (True, True, False),
}
PROPERTIES: dict[str, tuple[Any, ...]] = {
    "headers": (None, None, *TABLES),
    "priority": (None, None, 0, 9, 255),
    "delivery_mode": (None, 1, 2, 9),
    "expiration": (None, None, None, "10", "-1", "soon", "9" * 30),
    "user_id": (None,) * 9 + ("user", "other"),
    "data_name": (None, "none", "methods", "amqp.0-9"),
    "timestamp": (None, 0, (1 << 64) - 1),
}
BY_TYPE: dict[str, tuple[Any, ...]] = {
    "bit": (False, True),
    "octet": (0, 1, 4, 9, 255),
    "short": (0, 1, 65535),
    "long": (0, 1, 1 << 31),
    "table": TABLES,
    "longlong": (0, 1, 1 << 63),
    "timestamp": (0, 1, (1 << 64) - 1),
    "shortstr": ("", "s", "\udcff", "z" * 255),
    "longstr": (b"", b"s", b"\xff" * 300),
}
NEVER = ("connection.close", "connection.close-ok")
# Preferred methods.
OFTEN = (
    "queue.declare",
    "queue.declare",
    "queue.bind",
    "basic.publish",
    "basic.publish",
    "basic.consume",
    "basic.get",
    "basic.ack",
    "file.open",
    "file.stage",
    "file.publish",
    "file.consume",
    "file.ack",
    "file.open-ok",
    "file.reject",
    "stream.publish",
    "stream.consume",
    "stream.qos",
    "message.transfer",
    "message.transfer",
    "message.consume",
    "message.get",
    "message.open",
    "message.append",
    "message.close",
    "message.checkpoint",
    "message.resume",
    "message.ok",
    "message.reject",
    "tx.select",
    "tx.commit",
    "tx.rollback",
    "dtx.select",
    "dtx.start",
    "access.request",
    "channel.close",
    "basic.reject",
    "channel.flow",
    "tunnel.request",
)
ALL = tuple(name for name in METHODS if name not in NEVER)
# Choices of a client that wants to continue: of these fields, and among these methods.
TAME: dict[str, tuple[Any, ...]] = {
    "queue": ("a", "b", "f"),
    "exchange": ("", "", "x", "amq.topic"),
    "routing_key": ("a", "b", "f"),
    "ticket": (0,),
    "consumer_tag": ("",),
    "destination": ("",),
    "identifier": ("i", "j", "k"),
    "type": ("direct",),
    "internal": (False,),
    "arguments": TABLES[:12],
    "filter": ({},),
    "passive": (False,),
    "code": (0, 1),
    "body": (Body(INLINE, b"body"),),
    "content_size": (0, 1, 100, 4000),
    "exclusive": (False,),
    "prefetch_count": (0, 2, 10),
    "consume_rate": (0, 100_000),
    "active": (True, True, True, False),
    "realm": ("/open",),
    "out_of_band": ("",),
    "no_ack": (False,),
}
CALLS = (
    "queue.declare",
    "queue.purge",
    "basic.publish",
    "basic.publish",
    "basic.consume",
    "basic.get",
    "basic.get",
    "basic.qos",
    "basic.recover",
    "basic.cancel",
    "file.consume",
    "file.qos",
    "file.open",
    "stream.publish",
    "stream.publish",
    "stream.consume",
    "stream.qos",
    "message.transfer",
    "message.transfer",
    "message.consume",
    "message.get",
    "message.qos",
    "message.recover",
    "message.cancel",
    "channel.flow",
    "channel.ping",
    "channel.pong",
    "access.request",
    "tx.select",
    "exchange.declare",
    "tx.commit",
    "tx.rollback",
    "dtx.select",
    "dtx.start",
    "channel.close",
    "queue.declare",
    "queue.bind",
    "queue.unbind",
    "queue.delete",
    "exchange.delete",
)
# Methods that are mostly avoided: they end the session, or fail in an unexpected state.
SELDOM = frozenset(CALLS[CALLS.index("tx.select") :])
# Frame types of Qpid's dialect of 2007, in which methods are numbered.
REQUEST_FRAME, RESPONSE_FRAME = 9, 10
NUMBERS = struct.Struct(">QQI")
RESPONSES = frozenset(
    {name for name in METHODS if name.endswith("-ok")}
    | {"channel.ok", "basic.get-empty", "message.ok", "message.empty", "message.reject", "message.offset"}
)
TRANSFER = struct.pack(">HH", 120, 10)
# Reply codes of the specification, and additional ones of the broker; not 541, an internal error.
CODES = frozenset((310, 311, 312, 313, 320, 402, 403, 404, 405, 406, 501, 502, 503, 504, 505, 506, 530, 540))


class Fuzzer:
    """One client.

    `done` is set when the broker has closed the connection. `wild` is the share of invalid steps, which differs between
    clients. `ids` are identities of former channels, for `channel.resume`. With `requests`, it sends methods in requests
    and responses, like Qpid's peers of 2007.
    """

    def __init__(self, seed: int, ids: list[bytes] | None = None) -> None:
        self.random = random.Random(seed)
        self.ids = [] if ids is None else ids
        self.wild = self.random.choice((0.0, 0.002, 0.01, 0.05, 0.3))
        self.requests = self.chance(4)
        # By channel: requests and responses sent, and the last request received.
        self.numbers: dict[int, list[int]] = {}
        self.buffer = b""
        self.done = False
        self.codes: list[int] = []
        self.history: list[str] = []
        # Responses that have priority.
        self.answers: deque[Callable[[], bytes]] = deque()
        # Incomplete contents, by channel: header and missing bytes.
        self.contents: dict[int, list[int]] = {}

    # Out

    def start(self, user: str = "user", vhost: str = "/", channel_max: int = 2047) -> list[bytes]:
        """Return the handshake of a correct client, and its channels.

        Each piece is sent after the reply to the previous one.
        """
        first = codec.encode_method(
            "connection.start-ok", {"mechanism": "PLAIN", "response": f"\0{user}\0{user}", "locale": "en_US"}
        )
        tune = codec.encode_method("connection.tune-ok", {"channel_max": channel_max, "frame_max": 4096})
        opening = codec.encode_method("connection.open", {"virtual_host": vhost})
        opened = self.numbered(0, "connection.open", opening) if self.requests else frame_bytes(METHOD_FRAME, 0, opening)
        return [
            frame_bytes(METHOD_FRAME, 0, first),
            frame_bytes(METHOD_FRAME, 0, tune) + opened,
            b"".join(self.reopen(number) for number in CHANNELS),
            b"".join(
                [
                    *(self.method(1, "queue.declare", queue=queue, nowait=True) for queue in "abf"),
                    self.method(2, "exchange.declare", exchange="x", type="fanout", nowait=True),
                ]
            ),
        ]

    def method(self, number: int, name: str, **fields: Any) -> bytes:
        self.history.append(f"{number} {name} {fields}")
        payload = codec.encode_method(name, fields)
        return self.numbered(number, name, payload) if self.requests else frame_bytes(METHOD_FRAME, number, payload)

    def numbered(self, number: int, name: str, payload: bytes) -> bytes:
        """Return a request or a response, correct unless this client is wild."""
        if name in ("channel.open", "channel.resume"):
            self.numbers.pop(number, None)
        numbers = self.numbers.setdefault(number, [0, 0, 1])
        type = RESPONSE_FRAME if name in RESPONSES else REQUEST_FRAME
        numbers[type == RESPONSE_FRAME] += 1
        if name == "message.transfer":
            payload += b"\1" if self.chance(4) else b"\0"
        id = numbers[type == RESPONSE_FRAME]
        other = numbers[2] if type == RESPONSE_FRAME else 0
        if self.is_wild():
            id, other = self.random.choice((0, id, id + 1)), self.random.choice((0, 1, other, 1 << 63))
        return frame_bytes(type, number, NUMBERS.pack(id, other, 1 if self.is_wild() else 0) + payload)

    def chance(self, one_in: int) -> bool:
        return self.random.randrange(one_in) == 0

    def channel(self) -> int:
        return self.random.choice(STRANGE_CHANNELS if self.is_wild() and self.chance(5) else CHANNELS)

    def is_wild(self) -> bool:
        return self.random.random() < self.wild

    def value(self, name: str, kind: str) -> Any:
        if name in TAME and not self.is_wild():
            return self.random.choice(TAME[name])
        if kind == "content":
            kind_of_body = self.random.choice((INLINE, INLINE, INLINE, REFERENCE))
            octets_of_body = self.random.choice((b"", b"i", b"j", b"b" * 500))
            return Body(7 if self.chance(40) else kind_of_body, octets_of_body)
        return self.random.choice(BY_NAME.get(name) or BY_TYPE[kind])

    def fields(self, name: str) -> dict[str, Any]:
        return {field: self.value(field, kind) for field, kind in METHODS[name].fields}

    def step(self) -> bytes:
        """Return the next bytes of this client."""
        if self.answers and not self.chance(8):
            return self.answers.popleft()()
        if self.is_wild() and self.chance(2):
            return self.garbled(self.call()) if self.chance(2) else self.nonsense()
        if self.chance(8):
            return self.file()
        return self.reference() if self.chance(8) else self.call()

    def call(self) -> bytes:
        number = self.channel()
        if self.is_wild():
            name = self.random.choice(OFTEN if not self.chance(4) else ALL)
        else:
            name = self.random.choice(CALLS)
            if name in SELDOM and not self.chance(4):
                name = self.random.choice(CALLS[: CALLS.index("tx.select")])
        data = self.method(number, name, **self.fields(name))
        if not METHODS[name].content or self.is_wild():
            return data
        return data + self.content(number, name.split(".")[0])

    def file(self) -> bytes:
        """Return a correct or nearly correct file."""
        number = self.random.choice(CHANNELS)
        size = self.random.choice(SIZES)
        identifier = self.random.choice(IDENTIFIERS)
        data = self.method(number, "file.open", identifier=identifier, content_size=size)
        data += self.method(number, "file.stage") + self.content(number, "file", size if not self.is_wild() else None)
        return data + self.method(
            number,
            "file.publish",
            exchange="",
            routing_key=self.random.choice(("a", "b", "f")),
            identifier=identifier,
            mandatory=self.chance(4),
            immediate=self.chance(6),
        )

    def reference(self) -> bytes:
        """Return a correct or nearly correct message by reference."""
        number = self.random.choice(CHANNELS)
        name = self.random.choice((b"r1", b"r2"))
        steps: list[tuple[str, dict[str, Any]]] = [("message.open", {"reference": name})]
        steps += [
            ("message.append", {"reference": name, "bytes": b"p" * self.random.choice(SIZES[:-2])})
            for _ in range(self.random.randrange(3))
        ]
        steps.append(("message.checkpoint", {"reference": name, "identifier": "i"}))
        transfer = {"destination": "", "routing_key": self.random.choice(("a", "b")), "body": Body(REFERENCE, name)}
        steps.insert(self.random.randrange(1, len(steps) + 1), ("message.transfer", transfer))
        steps.append(("message.close", {"reference": name}))
        if self.is_wild():
            del steps[self.random.randrange(len(steps))]
            self.random.shuffle(steps)
        return b"".join(self.method(number, method, **fields) for method, fields in steps)

    def content(self, number: int, kind: str, size: int | None = None) -> bytes:
        """Return the header and body of a mostly correct content."""
        if self.is_wild():
            kind = self.random.choice(list(codec.CLASSES))
        if size is None:
            size = self.random.choice(SIZES)
        properties = {}
        for name, type in codec.CLASSES[kind].properties:
            if not self.chance(3):
                continue
            properties[name] = self.random.choice(PROPERTIES.get(name) or BY_TYPE[type])
        announced = self.random.choice((0, size + 1, max(0, size - 1), 1 << 40, (1 << 64) - 1)) if self.is_wild() else size
        header = bytearray(codec.encode_header(kind, announced, properties, 1 if self.is_wild() else 0))
        if self.is_wild():
            header[self.random.randrange(len(header))] ^= 1 << self.random.randrange(8)
        self.history.append(f"{number} content of {kind}: {size} octets, {announced} announced, {properties}")
        data = frame_bytes(HEADER_FRAME, number, bytes(header))
        while size > 0:
            piece = min(size, self.random.choice((1, 50, 4088, 4088)))
            data += frame_bytes(BODY_FRAME, number, b"o" * piece)
            size -= piece
            if self.chance(30):
                data += frame_bytes(HEARTBEAT_FRAME, 0, b"")
            if size and self.chance(40):
                data += frame_bytes(BODY_FRAME, number, b"")
            if self.is_wild():
                data += self.method(number, "channel.close", reply_code=200)
        return data

    def garbled(self, data: bytes) -> bytes:
        """Return the data with bytes changed, removed or repeated, mostly within frames."""
        self.history.append("garbled")
        if self.chance(6):
            at = self.random.randrange(len(data))
            return data[:at] + bytes((data[at] ^ 1 << self.random.randrange(8),)) + data[at + 1 :]
        type, number, size = struct.unpack_from(">BHI", data)
        payload, rest = bytearray(data[7 : 7 + size]), data[8 + size :]
        how = self.random.randrange(4)
        if how == 0 and payload:
            payload[self.random.randrange(len(payload))] ^= 1 << self.random.randrange(8)
        elif how == 1:
            del payload[self.random.randrange(len(payload) + 1) :]
        elif how == 2:
            payload += self.random.randbytes(self.random.randrange(1, 6))
        else:
            type = self.random.choice((1, 2, 3, 4, 5, 6, 7, 8, 9, 10))
        return frame_bytes(type, number, bytes(payload)) + rest

    def nonsense(self) -> bytes:
        """Return a frame of any type with any payload."""
        type = self.random.choice((1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10))
        payload = self.random.randbytes(self.random.randrange(40))
        if type == 1:
            spec = METHODS[self.random.choice(ALL)]
            payload = struct.pack(">HH", spec.class_id, spec.method_id) + payload
        self.history.append(f"nonsense of type {type}: {payload!r}")
        return frame_bytes(type, self.channel(), payload)

    def reopen(self, number: int) -> bytes:
        if self.ids and self.chance(8):
            return self.method(number, "channel.resume", channel_id=self.random.choice(self.ids))
        return self.method(number, "channel.open")

    # In

    def received(self, data: bytes) -> None:
        """Process the broker's output. Raises AssertionError if it is malformed, or reports an internal error."""
        self.buffer += data
        while len(self.buffer) >= 7:
            type, number, size = struct.unpack_from(">BHI", self.buffer)
            assert type in (METHOD_FRAME, HEADER_FRAME, BODY_FRAME, HEARTBEAT_FRAME) or (
                self.requests and type in (REQUEST_FRAME, RESPONSE_FRAME)
            ), f"a frame of type {type}"
            assert size + 8 <= 131072, f"a frame of {size + 8} octets"
            if len(self.buffer) < size + 8:
                return
            payload, end = self.buffer[7 : 7 + size], self.buffer[7 + size]
            assert end == 0xCE
            self.buffer = self.buffer[size + 8 :]
            self.frame(type, number, payload)

    def frame(self, type: int, number: int, payload: bytes) -> None:
        due = self.contents.get(number)
        if type == HEARTBEAT_FRAME:
            return
        if type == HEADER_FRAME:
            header = codec.decode_header(payload)
            assert due is not None and len(due) == 1, f"a header out of order on channel {number}"
            assert codec.CLASSES[header.kind].class_id == due[0]
            due.append(header.size)
        elif type == BODY_FRAME:
            assert due is not None and len(due) == 2, f"a body out of order on channel {number}"
            due[1] -= len(payload)
            assert due[1] >= 0, "more body than announced"
        else:
            if type != METHOD_FRAME:
                if type == REQUEST_FRAME:
                    self.numbers.setdefault(number, [0, 0, 1])[2] = NUMBERS.unpack_from(payload)[0]
                payload = payload[NUMBERS.size :]
                if payload.startswith(TRANSFER):
                    payload = payload[:-1]  # the bit `mandatory`
            method = codec.decode_method(payload)
            assert not self.requests or type == METHOD_FRAME or (method.name in RESPONSES) == (type == RESPONSE_FRAME)
            if method.name in ("channel.close", "connection.close"):
                self.contents.clear() if number == 0 else self.contents.pop(number, None)
            else:
                assert due is None, f"{method.name} within a content"
            if METHODS[method.name].content:
                self.contents[number] = [METHODS[method.name].class_id]
            self.react(number, method)
        due = self.contents.get(number)
        if due is not None and len(due) == 2 and due[1] == 0:
            del self.contents[number]

    def react(self, number: int, method: Method) -> None:
        name = method.name
        if name in ("connection.close", "channel.close"):
            self.history.append(f"{number} <- {method}")
            self.codes.append(method.reply_code)
            assert method.reply_code in CODES, method
            assert method.reply_text
        if name == "connection.close":
            self.done = True
        elif name == "channel.close" and not self.chance(20):
            self.answers.append(lambda: self.method(number, "channel.close-ok") + self.reopen(number))
        elif name == "channel.close-ok":
            self.answers.append(partial(self.reopen, number))
        elif name == "channel.open-ok":
            self.ids.append(method.channel_id)
        elif name == "channel.flow" and not self.chance(3):
            self.answer(number, "channel.flow-ok", active=method.active)
        elif name == "file.open" and not self.chance(4):
            staged = self.random.choice((0, 0, method.content_size, method.content_size // 2))
            self.answer(number, "file.open-ok", staged_size=staged)
        elif name in ("basic.deliver", "file.deliver", "basic.get-ok") and self.chance(2):
            kind = name.split(".")[0]
            if self.chance(3):
                self.answer(number, f"{kind}.reject", delivery_tag=method.delivery_tag, requeue=self.chance(2))
            else:
                self.answer(number, f"{kind}.ack", delivery_tag=method.delivery_tag, multiple=self.chance(3))
        elif name == "message.transfer" and self.chance(2):
            self.answer(number, "message.reject" if self.chance(4) else "message.ok")

    def answer(self, number: int, name: str, **fields: Any) -> None:
        self.answers.append(partial(self.method, number, name, **fields))

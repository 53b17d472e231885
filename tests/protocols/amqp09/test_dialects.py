"""The dialects of AMQP 0-9, byte by byte over a socket: this file alone encodes and decodes the frames."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from tests.support.broker import LeveretProcess, leveret_only
from tests.support.peers.connection import Connection

HEADER = b"AMQP\x01\x01\x00\x09"
METHOD, CONTENT_HEADER, CONTENT_BODY, REQUEST, RESPONSE = 1, 2, 3, 9, 10
BASIC = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    leveret_only("no other broker speaks AMQP 0-9")
    with LeveretProcess(tmp_path_factory.mktemp("dialects")).start() as broker:
        yield broker
        broker.check_log()


def short(text: str) -> bytes:
    return bytes((len(text.encode()),)) + text.encode()


def long(octets: bytes) -> bytes:
    return struct.pack(">I", len(octets)) + octets


def table(**fields: str | int) -> bytes:
    """Return a field table with the types S and I only, like clients of 2006."""
    return long(
        b"".join(
            short(name) + (b"S" + long(value.encode()) if isinstance(value, str) else b"I" + struct.pack(">i", value))
            for name, value in fields.items()
        )
    )


def tags(octets: bytes) -> set[bytes]:
    """Return the types of a table's fields, all of which must be S or I."""
    found = set()
    at = 0
    while at < len(octets):
        at += 1 + octets[at]
        tag = octets[at : at + 1]
        found.add(tag)
        at += 5 + (struct.unpack_from(">I", octets, at + 1)[0] if tag == b"S" else 0)
    assert at == len(octets)
    return found


class Raw(Connection):
    """A connection, opened in one of the two kinds of frames. What it reads it checks for ids in order."""

    def __init__(
        self,
        broker: LeveretProcess,
        *,
        requests: bool = False,
        mechanism: str = "PLAIN",
        vhost: str = "/",
        opens: bool = True,
    ) -> None:
        super().__init__(broker.host, broker.port)
        self.requests = False
        self.last_request: dict[int, int] = {}
        self.last_response: dict[int, int] = {}
        self.requests_in: dict[int, int] = {}
        self.responses_in: dict[int, int] = {}
        self.answered = (0, 0)
        self.send_bytes(HEADER)
        self.start = self.expect(0, 10, 10)
        response = {"PLAIN": b"\0guest\0guest", "AMQPLAIN": table(LOGIN="guest", PASSWORD="guest")[4:]}[mechanism]
        self.send(0, 10, 11, table(product="raw", number=1) + short(mechanism) + long(response) + short("en_US"))
        self.expect(0, 10, 30)
        self.send(0, 10, 31, struct.pack(">HIH", 100, 65536, 0))
        self.requests = requests
        if opens:
            self.send(0, 10, 40, short(vhost) + b"\0\0")
            self.expect(0, 10, 41)
            self.send(1, 20, 10, b"\0")
            self.expect(1, 20, 11)

    # Sending

    def frame(self, type: int, channel: int, payload: bytes) -> None:
        self.send_bytes(struct.pack(">BHI", type, channel, len(payload)) + payload + b"\xce")

    def send(self, channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> int:
        """Send a method. Return the id of its request; 0 for a frame of type 1."""
        method = struct.pack(">HH", class_id, method_id) + arguments
        if not self.requests:
            self.frame(METHOD, channel, method)
            return 0
        id = self.last_request[channel] = self.last_request.get(channel, 0) + 1
        self.frame(REQUEST, channel, struct.pack(">QQI", id, self.responses_in.get(channel, 0), 0) + method)
        return id

    def respond(
        self, channel: int, request: int, class_id: int, method_id: int, arguments: bytes = b"", offset: int = 0
    ) -> None:
        id = self.last_response[channel] = self.last_response.get(channel, 0) + 1
        self.frame(RESPONSE, channel, struct.pack(">QQIHH", id, request, offset, class_id, method_id) + arguments)

    def publish(self, key: str, body: bytes) -> None:
        self.send(1, BASIC, 40, b"\0\0" + short("") + short(key) + b"\0")
        self.frame(CONTENT_HEADER, 1, struct.pack(">HHQH", BASIC, 0, len(body), 0))
        self.frame(CONTENT_BODY, 1, body)

    # Receiving

    def read(self) -> tuple[int, int, bytes]:
        type, channel, size = struct.unpack(">BHI", self.read_bytes(7))
        payload = self.read_bytes(size)
        assert self.read_bytes(1) == b"\xce"
        return type, channel, payload

    def expect(self, channel: int, class_id: int, method_id: int) -> bytes:
        """The arguments of the next method, which is this one. `answered` is then the request that it came in, and the one
        that it answers."""
        type, number, payload = self.read()
        self.answered = (0, 0)
        if not self.requests:
            assert type == METHOD
        else:
            id, second, third = struct.unpack_from(">QQI", payload)
            payload = payload[20:]
            counts = {REQUEST: self.requests_in, RESPONSE: self.responses_in}[type]
            counts[number] = counts.get(number, 0) + 1
            assert id == counts[number] and third == 0
            assert type == RESPONSE or second == self.last_response.get(number, 0)
            self.answered = (0, second) if type == RESPONSE else (id, 0)
        assert (number, *struct.unpack_from(">HH", payload)) == (channel, class_id, method_id), payload
        return payload[4:]

    def content(self) -> bytes:
        type, _, header = self.read()
        assert type == CONTENT_HEADER and header[:2] == struct.pack(">H", BASIC)
        type, _, body = self.read()
        assert type == CONTENT_BODY and len(body) == struct.unpack_from(">Q", header, 4)[0]
        return body


@pytest.fixture(params=[False, True], ids=["frames", "requests"])
def raw(request: pytest.FixtureRequest, broker: LeveretProcess) -> Iterator[Raw]:
    """A connection of each kind."""
    raw = Raw(broker, requests=request.param)
    yield raw
    raw.drop()


@pytest.fixture
def numbered(broker: LeveretProcess) -> Iterator[Raw]:
    raw = Raw(broker, requests=True)
    yield raw
    raw.drop()


def declare(raw: Raw, name: str) -> None:
    raw.send(1, 50, 10, b"\0\0" + short(name) + b"\0" + table())
    assert raw.expect(1, 50, 11)[: 1 + len(name)] == short(name)


def delete(raw: Raw, name: str) -> None:
    raw.send(1, 50, 40, b"\0\0" + short(name) + b"\0")
    raw.expect(1, 50, 41)


# Logging in


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
def test_logins(broker: LeveretProcess, mechanism: str) -> None:
    raw = Raw(broker, mechanism=mechanism)
    major, minor, size = struct.unpack_from(">BBI", raw.start)
    assert (major, minor) == (0, 9)
    assert tags(raw.start[6 : 6 + size]) == {b"S"}
    mechanisms = raw.start[10 + size : 10 + size + struct.unpack_from(">I", raw.start, 6 + size)[0]]
    assert mechanism.encode() in mechanisms.split(b" ")
    raw.drop()


@pytest.mark.parametrize("vhost", ["/", "", "interop", "/interop"])
def test_paths_of_virtual_hosts(broker: LeveretProcess, vhost: str) -> None:
    Raw(broker, vhost=vhost).drop()


def test_a_virtual_host_that_is_not_there(broker: LeveretProcess) -> None:
    raw = Raw(broker, opens=False)
    raw.send(0, 10, 40, short("/nowhere") + b"\0\0")
    assert raw.expect(0, 10, 50)[:2] == struct.pack(">H", 402)
    raw.drop()


# In both kinds of frames


def test_messages(raw: Raw) -> None:
    declare(raw, "messages")
    raw.publish("messages", b"one")
    raw.publish("messages", b"two")
    get = raw.send(1, BASIC, 70, b"\0\0" + short("messages") + b"\1")
    raw.expect(1, BASIC, 71)
    assert raw.answered == (0, get)
    assert raw.content() == b"one"
    consume = raw.send(1, BASIC, 20, b"\0\0" + short("messages") + short("tag") + b"\0" + table())
    assert raw.expect(1, BASIC, 21) == short("tag")
    assert raw.answered == (0, consume)
    delivery = raw.expect(1, BASIC, 60)
    assert raw.answered == ((1, 0) if raw.requests else (0, 0))
    assert raw.content() == b"two"
    raw.send(1, BASIC, 80, delivery[4:12] + b"\0")
    ping = raw.send(1, 20, 60)
    raw.expect(1, 20, 80)
    assert raw.answered == (0, ping)
    raw.expect(1, 20, 70)
    if raw.requests:
        raw.respond(1, raw.answered[0], 20, 80)
    else:
        raw.send(1, 20, 80)
    delete(raw, "messages")
    close = raw.send(1, 20, 40, struct.pack(">H", 200) + short("") + bytes(4))
    raw.expect(1, 20, 41)
    assert raw.answered == (0, close)
    close = raw.send(0, 10, 50, struct.pack(">H", 200) + short("") + bytes(4))
    raw.expect(0, 10, 51)
    assert raw.answered == (0, close)
    assert raw.socket.recv(1) == b""


def test_later_xml(raw: Raw) -> None:
    declare(raw, "bound")
    raw.send(1, 40, 22, short("") + short("bound") + short("bound"))
    assert raw.expect(1, 40, 23) == struct.pack(">H", 0) + short("")
    raw.send(1, 40, 22, short("amq.direct") + short("key") + short("bound"))
    assert raw.expect(1, 40, 23)[:2] == struct.pack(">H", 6)
    raw.publish("bound", b"again")
    raw.send(1, BASIC, 20, b"\0\0" + short("bound") + short("t") + b"\0" + table())
    raw.expect(1, BASIC, 21)
    assert raw.expect(1, BASIC, 60)[10:11] == b"\0"
    assert raw.content() == b"again"
    recover = raw.send(1, BASIC, 102, b"\0")
    assert raw.expect(1, BASIC, 60)[10:11] == b"\1"
    assert raw.content() == b"again"
    raw.expect(1, BASIC, 101)
    assert raw.answered == (0, recover)
    delete(raw, "bound")


def test_preview_classes(raw: Raw) -> None:
    declare(raw, "preview")
    raw.send(1, 40, 30, b"\0\0" + short("amq.topic"))
    assert raw.expect(1, 40, 31) == short("topic") + b"\1" + table()
    raw.send(1, 40, 30, b"\0\0" + short("nowhere"))
    assert raw.expect(1, 40, 31) == short("") + b"\2" + table()
    raw.send(1, 130, 10, b"\0\0" + short("amq.topic") + short("preview") + short("key") + table(a="b"))
    assert raw.expect(1, 130, 11) == b"\x1c"  # the queue, the key and the arguments
    raw.send(1, 130, 10, b"\0\0" + short("nowhere") + short("none") + short("") + table())
    assert raw.expect(1, 130, 11) == b"\x03"
    raw.send(1, 140, 10)
    raw.send(1, 140, 20, struct.pack(">I", 7))
    xid = long(b"\0branch of " + (b"requests" if raw.requests else b"frames"))
    raw.send(1, 101, 10)
    raw.expect(1, 101, 11)
    raw.send(1, 101, 20, b"\0\0" + xid + b"\0")
    assert raw.expect(1, 101, 21) == struct.pack(">H", 8)
    raw.publish("preview", b"distributed")
    raw.send(1, 101, 30, b"\0\0" + xid + b"\0")
    assert raw.expect(1, 101, 31) == struct.pack(">H", 8)
    prepare = raw.send(1, 105, 40, b"\0\0" + xid)
    assert raw.expect(1, 105, 41) == struct.pack(">H", 8)
    assert raw.answered == (0, prepare)
    commit = raw.send(1, 105, 10, b"\0\0" + xid + b"\0")
    assert raw.expect(1, 105, 11) == struct.pack(">H", 8)
    assert raw.answered == (0, commit)
    raw.send(1, BASIC, 70, b"\0\0" + short("preview") + b"\1")
    raw.expect(1, BASIC, 71)
    assert raw.content() == b"distributed"
    delete(raw, "preview")


def transfer(raw: Raw, key: str, body: bytes, mandatory: bool = False) -> int:
    """A message.transfer with an inline body: the coding of `content` is a byte and a long string."""
    arguments = (
        b"\0\0"
        + short("")
        + b"\0"
        + bytes(8)
        + b"\0"
        + bytes(8)
        + b"\1"
        + bytes(8)
        + short("")
        + short(key)
        + short("id")
        + short("") * 7
        + long(b"")
        + table(a="b", n=1)
        + b"\0"
        + long(body)
    )
    return raw.send(1, 120, 10, arguments + (bytes((mandatory,)) if raw.requests else b""))


def test_a_transfer_ends_with_the_bit_mandatory_in_requests_only(raw: Raw) -> None:
    declare(raw, "transfers")
    sent = transfer(raw, "transfers", b"inline")
    raw.expect(1, 120, 500)
    assert raw.answered == (0, sent)
    get = raw.send(1, 120, 40, b"\0\0" + short("transfers") + short("here") + b"\1")
    raw.expect(1, 120, 500)
    assert raw.answered == (0, get)
    came = raw.expect(1, 120, 10)
    end = b"\0" + long(b"inline")
    assert came[2:7] == short("here")
    assert came.endswith(end + b"\0" if raw.requests else end)
    delete(raw, "transfers")


# With requests only


def test_an_ok_settles_the_transfers_that_it_names(numbered: Raw, broker: LeveretProcess) -> None:
    declare(numbered, "settled")
    for body in (b"one", b"two", b"three"):
        transfer(numbered, "settled", body)
        numbered.expect(1, 120, 500)
    consume = numbered.send(1, 120, 20, b"\0\0" + short("settled") + short("d") + b"\0" + table())
    numbered.expect(1, 120, 500)
    assert numbered.answered == (0, consume)
    ids = []
    for _ in range(3):
        numbered.expect(1, 120, 10)
        ids.append(numbered.answered[0])
    # The second and the third together: the first one is repeated.
    numbered.respond(1, ids[1], 120, 500, offset=1)
    close = numbered.send(1, 20, 40, struct.pack(">H", 200) + short("") + bytes(4))
    numbered.expect(1, 20, 41)
    assert numbered.answered == (0, close)
    other = Raw(broker)
    other.send(1, 120, 40, b"\0\0" + short("settled") + short("d") + b"\1")
    other.expect(1, 120, 500)
    assert other.expect(1, 120, 10).endswith(b"\0" + long(b"one"))
    other.send(1, 120, 40, b"\0\0" + short("settled") + short("d") + b"\1")
    other.expect(1, 120, 510)
    delete(other, "settled")
    other.drop()


@pytest.mark.parametrize("id", [1, 3], ids=["restart", "continue"])
def test_a_channel_is_opened_again(numbered: Raw, id: int) -> None:
    close = numbered.send(1, 20, 40, struct.pack(">H", 200) + short("") + bytes(4))
    assert close == 2
    if id == 1:
        numbered.last_request[1] = 0
    numbered.send(1, 20, 10, b"\0")
    numbered.expect(1, 20, 41)
    if id == 1:
        numbered.requests_in[1] = numbered.responses_in[1] = 0
    numbered.expect(1, 20, 11)
    assert numbered.answered == (0, id)
    numbered.send(1, 20, 60)
    numbered.expect(1, 20, 80)


PING = struct.pack(">HH", 20, 60)


@pytest.mark.parametrize(
    ("type", "payload", "code"),
    [
        (REQUEST, struct.pack(">QQI", 3, 0, 0) + PING, 503),
        (REQUEST, struct.pack(">QQI", 2, 2, 0) + PING, 503),
        (RESPONSE, struct.pack(">QQI", 1, 1, 0) + struct.pack(">HH", 120, 500), 503),
        (RESPONSE, struct.pack(">QQI", 1, 1, 0) + PING, 503),
        (REQUEST, b"\0" * 23, 501),
        (RESPONSE, b"", 501),
        (METHOD, PING, 501),
        (REQUEST, struct.pack(">QQI", 2, 0, 0) + struct.pack(">HHHB", 50, 10, 0, 9), 502),
    ],
    ids=["gap", "mark", "unknown", "no-answer", "short", "empty", "method", "arguments"],
)
def test_mistakes_end_the_connection(numbered: Raw, type: int, payload: bytes, code: int) -> None:
    numbered.frame(type, 1, payload)
    assert numbered.expect(0, 10, 50)[:2] == struct.pack(">H", code)
    assert numbered.answered == (1, 0)
    numbered.respond(0, 1, 10, 51)
    assert numbered.socket.recv(1) == b""


@pytest.mark.parametrize("opens", [True, False], ids=["opened", "before"])
def test_a_connection_without_requests_refuses_them(broker: LeveretProcess, opens: bool) -> None:
    raw = Raw(broker, opens=opens)
    raw.frame(REQUEST, 1, struct.pack(">QQI", 1, 0, 0) + PING)
    assert raw.expect(0, 10, 50)[:2] == struct.pack(">H", 501)
    raw.drop()

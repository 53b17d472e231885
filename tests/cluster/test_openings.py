"""The search for the client's open, whatever the pieces in which it arrives, and what the adoption has of the client."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.cluster.openings import Amqp0Opening, Amqp10Opening, Opening
from leveret.protocols.amqp09.connection.connection import Connection as Connection09
from leveret.protocols.amqp091.connection.connection import Connection as Connection091
from leveret.protocols.amqp10.connection.connection import Connection as Connection10
from leveret.security.accounts import UserAccount, import_account
from leveret.security.oauth.account import TokenAccount
from leveret.security.oauth.scopes import Scopes
from leveret.wire.amqp0 import dialects
from leveret.wire.amqp0.dialects import QPID, RABBITMQ, Dialect
from leveret.wire.amqp0.fieldtable import decode_table
from leveret.wire.amqp10.output import Output
from leveret.wire.amqp10.transport import Open
from tests.protocols.support import FuzzedPeer, Site
from tests.support.examples import examples


class SilentPeer(FuzzedPeer):
    """A peer whose output does not matter."""

    def write(self, data: bytes) -> None:
        """Discard the output."""


def frame0(type: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", type, channel, len(payload)) + payload + b"\xce"


def frame10(body: bytes, type: int = 0) -> bytes:
    return struct.pack(">IBBH", len(body) + 8, 2, type, 0) + body


def open10(vhost: str) -> bytes:
    output = Output()
    output.send(Open("box", hostname=f"vhost:{vhost}"))
    return output.to_send()


OPEN0 = frame0(1, 0, b"\x00\x0a\x00\x28\x01b\x00\x00")
REQUEST0 = frame0(9, 0, bytes(20) + b"\x00\x0a\x00\x28\x01b\x00\x00")
# Frames that are no open.
OTHERS0 = [
    frame0(8, 0, b""),
    frame0(1, 0, b"\x00\x0a\x00\x1f" + bytes(8)),
    frame0(1, 0, b"\x00\x0a"),
    frame0(1, 1, b"\x00\x0a\x00\x28\x01b\x00\x00"),
    frame0(3, 0, b"\x00\x0a\x00\x28\x01b\x00\x00"),
    frame0(3, 7, OPEN0 * 50),
    frame0(9, 0, bytes(20) + b"\x00\x0a\x00\x1f" + bytes(8)),
    OPEN0[:-1] + b"\0",
]
OTHERS10 = [b"AMQP\x00\x01\x00\x00", frame10(b""), frame10(b"\x00\x53\x41" + bytes(40), 1)]


def search(opening: Opening, data: bytes, cuts: list[int]) -> tuple[bytes, bytes]:
    """Return the input for the session before the first possible open, and that open."""
    passed = held = b""
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        held += data[start:end]
        while held:
            at, stop = opening.find(held)
            if stop > at:
                return passed + held[:at], held[at:stop]
            passed += held[:at]
            held = held[at:]
            if not at:
                break
    return passed, b""


@examples(200)
@given(
    st.lists(st.sampled_from(OTHERS0), max_size=5),
    st.sampled_from([OPEN0, REQUEST0]),
    st.lists(st.integers(0, 1000), max_size=8),
)
def test_frames_of_0_x_in_any_pieces(others: list[bytes], last: bytes, cuts: list[int]) -> None:
    before = b"".join(others)
    data = before + last + b"more"
    opening = Amqp0Opening(Connection091(SilentPeer(Site()), Site().services))
    found = search(opening, data, sorted(cut for cut in cuts if cut <= len(data)))
    assert found == (before, last)


@examples(100)
@given(st.lists(st.sampled_from(OTHERS10), max_size=5), st.lists(st.integers(0, 200), max_size=8))
def test_frames_of_1_0_in_any_pieces(others: list[bytes], cuts: list[int]) -> None:
    before, last = b"".join(others), open10("b")
    data = before + last + b"more"
    site = Site()
    opening = Amqp10Opening(Connection10(SilentPeer(site), site.protocols.amqp10, True))
    found = search(opening, data, sorted(cut for cut in cuts if cut <= len(data)))
    assert found == (before, last)


@pytest.mark.parametrize("size", [0, 7, 8193, 1 << 31])
def test_frames_of_1_0_with_a_wrong_size(size: int) -> None:
    """All further input is the session's, which refuses it."""
    site = Site()
    opening = Amqp10Opening(Connection10(SilentPeer(site), site.protocols.amqp10, True))
    data = frame10(b"") + struct.pack(">IBBH", size, 2, 0, 0) + open10("b")
    assert opening.find(data) == (len(data), len(data))
    assert opening.ends


def test_vhosts_of_opens() -> None:
    site = Site()
    vhosts = {"/", "b", "a b", "/c"}
    older = Amqp0Opening(Connection091(SilentPeer(site), site.services))
    assert older.vhost(OPEN0, vhosts) == "b"
    assert older.vhost(frame0(1, 0, b"\x00\x0a\x00\x28\x02b\x00\x00"), vhosts) is None
    oldest = Amqp0Opening(Connection09(SilentPeer(site), site.protocols.amqp09))
    paths = {"/b": "b", "b": "b", "": "/", "/": "/", "/c": "/c", "/d": "d"}
    for path, name in paths.items():
        payload = b"\x00\x0a\x00\x28" + bytes((len(path),)) + path.encode() + b"\x00\x00"
        assert oldest.vhost(frame0(1, 0, payload), vhosts) == name
    newest = Amqp10Opening(Connection10(SilentPeer(site), site.protocols.amqp10, True))
    for hostname, name in {"b": "b", "a%20b": "a b", "a b": "a b", "d%20": "d%20"}.items():
        assert newest.vhost(open10(hostname), vhosts) == name
    assert newest.vhost(frame10(b"\x00\x53\x11\x45"), vhosts) is None
    assert newest.vhost(open10("b") + b"x", vhosts) is None
    assert newest.vhost(frame10(b"\xff\xff"), vhosts) is None


def values(dialect: Dialect) -> st.SearchStrategy[bytes]:
    """Return values of all types of a dialect, with their tags."""

    def tagged(tag: int) -> st.SearchStrategy[bytes]:
        size = dialect.sizes[tag]
        if size == dialects.SHORT_LENGTH:
            content = st.binary(max_size=5).map(lambda data: bytes((len(data),)) + data)
        elif size == dialects.LONG_LENGTH:
            content = st.binary(max_size=5).map(lambda data: struct.pack(">I", len(data)) + data)
        else:
            content = st.binary(min_size=size, max_size=size)
        return content.map(lambda data: bytes((tag,)) + data)

    simple = [
        tagged(tag) for tag in range(256) if dialect.types[tag] not in (dialects.UNKNOWN, dialects.ARRAY, dialects.TABLE)
    ]
    return st.recursive(
        st.one_of(simple),
        lambda inner: st.one_of(
            st.lists(inner, max_size=2).map(b"".join).map(lambda data: b"A" + struct.pack(">I", len(data)) + data),
            st.lists(inner, max_size=2)
            .map(lambda items: b"".join(b"\x01x" + item for item in items))
            .map(lambda data: b"F" + struct.pack(">I", len(data)) + data),
        ),
        max_leaves=5,
    )


@pytest.mark.parametrize("dialect", [RABBITMQ, QPID], ids=["0-9-1", "0-9"])
def test_client_properties_of_all_types(dialect: Dialect) -> None:
    site = Site()
    session = Connection091(SilentPeer(site), site.services)

    @examples(200)
    @given(st.dictionaries(st.binary(max_size=5), values(dialect), max_size=4))
    def check(fields: dict[bytes, bytes]) -> None:
        raw = b"".join(bytes((len(name),)) + name + value for name, value in fields.items())
        properties = decode_table(raw, 0, len(raw), dialect)
        session.handshake.client = session.handshake.describe_client(properties)
        encoded = session.handshake.encoded_properties()
        assert repr(decode_table(encoded, 0, len(encoded), RABBITMQ)) == repr(properties)

    check()


def test_accounts() -> None:
    users = Site().users
    exported = UserAccount("user", users).export()
    assert exported.scopes is None and exported.name == "user"
    scopes = ("configure:{vhost}/*-{team}%7B*", "read:*/{sub}.*/{team}", "tag:monitoring", "nonsense")
    account = TokenAccount("alice", Scopes(scopes, {"team": "red", "sub": "alice", "vhost": "x", "other": "y"}), 1e9)
    packed = msgspec.msgpack.decode(msgspec.msgpack.encode(account.export()), type=type(exported))
    assert packed.variables == {"team": "red", "sub": "alice"}
    again = import_account(packed, users)
    assert (again.name, again.expires_at, again.is_token, again.tags) == ("alice", 1e9, True, ("monitoring",))
    for operation, resource in (("configure", "a-red{b"), ("read", "alice.q"), ("read", "bob.q"), ("write", "alice.q")):
        assert again.may("b", operation, resource) is account.may("b", operation, resource)
    assert again.may("b", "configure", "a-red{b")
    assert again.may_topic("b", "read", "alice.x", "red") and not again.may_topic("b", "read", "alice.x", "blue")

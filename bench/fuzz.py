"""Fuzz the sessions of all protocols in memory, and watch the time of every turn.

    python bench/fuzz.py --protocol 0-9-1 --stage after --minutes 5 --seed 7

The seed determines a pool of valid and invalid frames. The fuzzer draws frames from the pool, changes some of their
bytes, and feeds them to a session in pieces of a few frames: at once (before authentication), or after a correct login.
The broker must not log an internal error, and no exception may escape from a session. A turn is the immediate processing
of one piece, in CPU time of the thread. The fuzzer counts turns over 20 ms and prints the longest one; a turn over 100 ms
is an error.

Only frames that a session received before the broker closed the connection count.
"""

from __future__ import annotations

import argparse
import functools
import gc
import logging
import random
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from leveret.protocols.amqp09.connection.connection import Connection as Connection09  # noqa: E402
from leveret.protocols.amqp091.connection.connection import Connection as Connection091  # noqa: E402
from leveret.protocols.amqp10.connection.connection import Connection as Connection10  # noqa: E402
from leveret.protocols.session import Session  # noqa: E402
from leveret.wire.amqp0 import model  # noqa: E402
from leveret.wire.amqp0.dialects import RABBITMQ  # noqa: E402
from leveret.wire.amqp0.errors import EncodeError  # noqa: E402
from leveret.wire.amqp0.methods import encode_arguments  # noqa: E402
from leveret.wire.amqp0.properties import encode_header  # noqa: E402
from leveret.wire.amqp0.specs import V0_9_1  # noqa: E402
from leveret.wire.amqp10 import transport  # noqa: E402
from leveret.wire.amqp10.composites import encode_composite  # noqa: E402
from leveret.wire.amqp10.encode import encode_value  # noqa: E402
from leveret.wire.amqp10.messaging import Accepted, Modified, Received, Rejected, Released, Source, Target  # noqa: E402
from leveret.wire.amqp10.output import Output  # noqa: E402
from leveret.wire.amqp10.security import SaslInit, SaslResponse  # noqa: E402
from leveret.wire.amqp10.transactions import Coordinator, Declare, Discharge, TransactionalState  # noqa: E402
from leveret.wire.amqp10.values import Symbol  # noqa: E402
from tests.protocols.support import FuzzedPeer, Site  # noqa: E402
from tests.support import fuzz09  # noqa: E402
from tests.support.peers.amqp10 import message  # noqa: E402

PROTOCOLS = ("0-9", "0-9-1", "1.0")
STAGES = ("before", "after")
POOL = 1000
SLOW = 0.020
TOO_SLOW = 0.100
# Connections of one broker.
PER_SITE = 200
PIECES = 100
AMQP_1_0, SASL_1_0 = b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00"


class FuzzPeer(FuzzedPeer):
    """The broker's side of a socket. If the broker closes a channel or a session, the client reopens it.

    answers: the client's next input.
    """

    def __init__(self, site: Site, protocol: str) -> None:
        super().__init__(site)
        self.protocol = protocol
        self.answers = b""

    def write(self, data: bytes) -> None:
        if self.protocol == "1.0":
            self._look_1_0(data)
        else:
            self._look_0(data)

    def _look_0(self, data: bytes) -> None:
        at = 0
        while at + 11 <= len(data):
            kind, channel, size, class_id, method_id = struct.unpack_from(">BHIHH", data, at)
            if kind == 1 and class_id == 10 and method_id == 50:
                self.closed = True
            elif kind == 1 and class_id == 20 and method_id == 40:
                self.answers += frame(1, channel, b"\x00\x14\x00\x29") + frame(1, channel, b"\x00\x14\x00\x0a\x00")
            at += size + 8

    def _look_1_0(self, data: bytes) -> None:
        at = 0
        while at + 11 <= len(data) and data[at : at + 4] != b"AMQP":
            size, doff, kind, channel = struct.unpack_from(">IBBH", data, at)
            performative = data[at + doff * 4 + 2] if at + doff * 4 + 2 < len(data) and size > doff * 4 else 0
            if kind == 0 and performative == 0x18:
                self.closed = True
            elif kind == 0 and performative == 0x17:
                output = Output(1 << 16)
                for item in (transport.End(channel=channel), transport.Begin(0, 1000, 1000, channel=channel)):
                    output.send(item)
                self.answers += output.to_send()
            at += max(size, 8)


# Pools


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def pool_0_9(chance: random.Random) -> list[bytes]:
    clients = [fuzz09.Fuzzer(chance.randrange(1 << 30)) for _ in range(20)]
    return [client.step() for _ in range(POOL // 20) for client in clients]


VALUES_0_9_1: dict[str, tuple[Any, ...]] = {
    **{name: values for name, values in fuzz09.BY_NAME.items() if name not in ("ticket", "active")},
    "arguments": (*fuzz09.TABLES, {"x-delayed-type": "direct"}, {"x-stream-offset": "first"}, {"x-priority": 1}),
    "type": ("direct", "fanout", "topic", "headers", "x-consistent-hash", "x-delayed-message", "nonsense", ""),
}


def pool_0_9_1(chance: random.Random) -> list[bytes]:
    methods = [spec for spec in V0_9_1.methods.values() if not spec.name.startswith("connection.close")]
    often = [
        spec
        for spec in methods
        if spec.name
        in (
            "queue.declare",
            "queue.bind",
            "basic.publish",
            "basic.consume",
            "basic.get",
            "basic.ack",
            "basic.nack",
            "tx.select",
            "tx.commit",
            "confirm.select",
            "exchange.declare",
            "channel.open",
            "basic.recover",
        )
    ]
    pool: list[bytes] = []
    while len(pool) < POOL:
        spec = chance.choice(often if chance.random() < 0.8 else methods)
        arguments = {}
        for field in spec.fields:
            if field.reserved:
                continue
            values = VALUES_0_9_1.get(field.name) or _BY_TYPE.get(field.type, (0, 1))
            value = chance.choice(values)
            if isinstance(value, bytes) and field.type in (model.SHORTSTR, model.LONGSTR):
                value = value.decode("latin-1")
            arguments[field.name] = value
        channel = chance.choice((1, 1, 1, 2, 2, 3, 4, 0, 65535))
        try:
            data = frame(1, channel, encode_arguments(spec, arguments, RABBITMQ))
            if spec.content:
                body = b"x" * chance.choice(fuzz09.SIZES)
                properties = {
                    name: value
                    for name, values in fuzz09.PROPERTIES.items()
                    if name in ("headers", "priority", "delivery_mode", "expiration", "user_id")
                    and (value := chance.choice(values)) is not None
                }
                data += frame(2, channel, encode_header(60, len(body), properties))
                if body:
                    data += frame(3, channel, body)
        except (EncodeError, ValueError, TypeError, OverflowError, struct.error):
            continue
        pool.append(data)
    return pool


_BY_TYPE: dict[int, tuple[Any, ...]] = {
    model.BIT: (False, True),
    model.OCTET: (0, 1, 255),
    model.SHORT: (0, 1, 65535),
    model.LONG: (0, 1, 1 << 31),
    model.LONGLONG: (0, 1, 2, 3, 1 << 63),
    model.TIMESTAMP: (0, 1),
    model.SHORTSTR: ("", "s", "z" * 255),
    model.LONGSTR: ("", "s"),
    model.TABLE: fuzz09.TABLES,
}

ADDRESSES = (
    "/queues/a",
    "/queues/b",
    "/queue/c",
    "a",
    "b",
    "/exchanges/amq.topic/a",
    "/topic/x",
    "",
    "amq.direct",
    "/nothing/x",
    None,
    "x" * 300,
    "$management",
    "\N{PILE OF POO}",
)
SMALL = (0, 0, 0, 1, 1, 2, 3, 7, 255, 65535, (1 << 32) - 1)


def value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(9 if depth < 3 else 6)
    if kind == 0:
        return None
    if kind == 1:
        return chance.choice((True, False))
    if kind == 2:
        return chance.choice((0, 1, -1, 1 << 31, -(1 << 63), (1 << 63) - 1))
    if kind == 3:
        return chance.random()
    if kind == 4:
        return chance.choice(("", "s", "ü", "x" * 300))
    if kind == 5:
        return chance.choice((b"", b"b" * 300))
    if kind == 6:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {
        chance.choice((Symbol("k"), Symbol("x-opt-delay"), "text", 1, Symbol("x-match"))): value(chance, depth + 1)
        for _ in range(chance.randrange(4))
    }


def performative(chance: random.Random) -> Any:
    pick = chance.choice

    def small() -> int:
        return pick(SMALL)

    def state() -> Any:
        return pick(
            (
                None,
                Accepted(),
                Accepted(),
                Released(),
                Rejected(),
                Modified(True, True),
                Received(0, small()),
                TransactionalState(b"0", Accepted()),
            )
        )

    channel = pick((0, 0, 0, 0, 1, 2, 65535))
    kind = chance.randrange(20)
    if kind == 0:
        return transport.Begin(small(), small(), small(), handle_max=small(), channel=channel)
    if kind < 5:
        sends = chance.random() < 0.5
        expiry = pick(("session-end", "never", "link-detach", "x"))
        target: Any = pick(
            (
                Target(pick(ADDRESSES), durable=pick((0, 1, 2)), dynamic=pick((False, False, True)), expiry_policy=expiry),
                Coordinator(()),
                None,
            )
        )
        source = pick(
            (
                Source(
                    pick(ADDRESSES),
                    durable=pick((0, 1, 2)),
                    dynamic=pick((False, False, True)),
                    distribution_mode=pick((None, "move", "copy", "x")),
                    filter=pick((None, {}, {Symbol("f"): value(chance)})),
                ),
                None,
            )
        )
        return transport.Attach(
            pick(("l", "m", "n", "")),
            small(),
            not sends,
            pick((0, 1, 2)),
            pick((0, 1)),
            source,
            target,
            unsettled=pick((None, None, {b"t": Accepted()})),
            initial_delivery_count=pick((0, 0, None, 5)),
            properties=pick((None, {})),
            channel=channel,
        )
    if kind < 9:
        return transport.Flow(
            small(),
            small(),
            small(),
            small(),
            pick((None, *SMALL)),
            small(),
            small(),
            drain=pick((False, True)),
            echo=pick((False, True)),
            channel=channel,
        )
    if kind < 15:
        body = pick(
            (
                message(b"x" * pick((0, 10, 3000))),
                b"",
                b"\x00\x53\x77" + encode_value(value(chance)),
                b"\x00\x53\x72" + encode_value({Symbol("x-opt-a"): 1}) + message(b"b"),
            )
        )
        return transport.Transfer(
            small(),
            small(),
            pick((b"t", b"u", b"", None)),
            pick((0, 0, None, 1)),
            pick((None, True, False)),
            more=pick((False, False, True)),
            state=state(),
            resume=chance.random() < 0.1,
            aborted=chance.random() < 0.1,
            payload=body,
            channel=channel,
        )
    if kind < 18:
        return transport.Disposition(
            pick((True, False)), small(), pick((None, *SMALL)), pick((True, False)), state(), channel=channel
        )
    if kind == 18:
        return transport.Detach(small(), pick((True, False)), channel=channel)
    work = encode_composite(pick((Declare(), Discharge(b"0", False))))
    return pick(
        (
            transport.End(channel=channel),
            transport.Transfer(small(), small(), b"c", 0, payload=b"\x00\x53\x77" + work, channel=channel),
        )
    )


def pool_1_0(chance: random.Random) -> list[bytes]:
    pool: list[bytes] = []
    while len(pool) < POOL:
        output = Output(1 << 16)
        try:
            output.send(performative(chance))
        except Exception:  # skip values that cannot be encoded
            continue
        pool.append(output.to_send())
    return pool


POOLS: dict[str, Callable[[random.Random], list[bytes]]] = {"0-9": pool_0_9, "0-9-1": pool_0_9_1, "1.0": pool_1_0}


def frames_in(protocol: str, data: bytes) -> int:
    """Return the number of complete frames in valid data."""
    count = at = 0
    while at + 8 <= len(data):
        at += struct.unpack_from(">I", data, at)[0] if protocol == "1.0" else struct.unpack_from(">I", data, at + 3)[0] + 8
        count += 1
        if at <= 0:
            break
    return count


# Logins


@functools.cache
def login(protocol: str) -> list[bytes]:
    """Return the frames that a correct client sends to open its connection and some channels."""
    if protocol == "0-9":
        return fuzz09.Fuzzer(0).start()
    output = Output(1 << 16)
    if protocol == "1.0":
        output.send(transport.Open("fuzz"))
        for channel in range(3):
            output.send(transport.Begin(0, 1000, 1000, channel=channel))
        for handle, (sends, name) in enumerate(((True, "s"), (False, "r"))):
            output.send(
                transport.Attach(
                    name,
                    handle,
                    not sends,
                    source=Source("/queues/a"),
                    target=Target("/queues/a"),
                    initial_delivery_count=0,
                )
            )
        output.send(transport.Flow(1000, 0, 1000, 0, 1, 0, 10))
        return [output.to_send()]

    def method(name: str, channel: int = 0, **arguments: Any) -> bytes:
        return frame(1, channel, encode_arguments(V0_9_1.by_name[name], arguments, RABBITMQ))

    return [
        method("connection.start-ok", mechanism="PLAIN", response="\0user\0user", locale="en_US"),
        method("connection.tune-ok", channel_max=2047, frame_max=131072) + method("connection.open", virtual_host="/"),
        b"".join(method("channel.open", channel) for channel in (1, 2, 3)),
        b"".join(method("queue.declare", 1, queue=queue) for queue in "ab"),
    ]


def first_0(chance: random.Random, protocol: str) -> bytes:
    """Return a frame that may be the next step of a handshake."""
    pieces = login(protocol)
    if protocol == "1.0":
        output = Output(1 << 16)
        output.send(
            chance.choice(
                (
                    SaslInit(
                        chance.choice(("PLAIN", "ANONYMOUS", "SCRAM-SHA-256", "x")), chance.randbytes(chance.randrange(60))
                    ),
                    SaslResponse(chance.randbytes(chance.randrange(60))),
                )
            )
        )
        return chance.choice((output.to_send(), pieces[0], AMQP_1_0, SASL_1_0))
    return chance.choice(pieces[:2])


class Found:
    """Counts of frames, connections and slow turns; the longest turn in seconds, and `at`: the name of its connection."""

    def __init__(self) -> None:
        self.frames = 0
        self.connections = 0
        self.slow = 0
        self.longest = 0.0
        self.at = ""
        self.wrong: list[str] = []


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


def make_site(protocol: str) -> Site:
    site = Site(spool_threshold=100_000, max_message_size=200_000, max_transaction=100_000)
    site.protocols.amqp10.settings.anonymous_user = "user"
    return site


def connect(protocol: str, stage: str, site: Site, peer: FuzzPeer, chance: random.Random) -> Session:
    if protocol == "0-9":
        return Connection09(peer, site.protocols.amqp09)
    if protocol == "0-9-1":
        return Connection091(peer, site.services)
    return Connection10(peer, site.protocols.amqp10, stage == "before" and chance.random() < 0.5)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Change, delete or repeat some bytes."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        if not changed:
            break
        at = chance.randrange(min(len(changed), 64) if chance.random() < 0.7 else len(changed))
        kind = chance.random()
        if kind < 0.6:
            changed[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        elif kind < 0.8:
            del changed[at : at + chance.randrange(1, 5)]
        else:
            changed[at:at] = changed[at : at + chance.randrange(1, 9)]
    return bytes(changed)


def run(protocol: str, stage: str, seed: int, until: float, most: float = float("inf")) -> Found:
    """Fuzz one protocol until a time of the monotonic clock, or for `most` frames."""
    found = Found()
    errors = _Errors()
    log = logging.getLogger("leveret")
    before = log.level, log.propagate
    log.setLevel(logging.ERROR)
    log.propagate = False
    log.addHandler(errors)
    try:
        pool = [(data, frames_in(protocol, data)) for data in POOLS[protocol](random.Random(f"{seed} {protocol}"))]
        opening = login(protocol)
        deadly = pool
        if stage == "after":
            # Most connections should last long.
            site = make_site(protocol)
            lives = [_survives(protocol, site, data, opening) for data, _ in pool]
            deadly = [item for item, live in zip(pool, lives, strict=True) if not live]
            pool = [item for item, live in zip(pool, lives, strict=True) if live]
        gc.collect()
        gc.freeze()
        site = make_site(protocol)
        while time.monotonic() < until and found.frames < most and len(found.wrong) < 20:
            if found.connections % PER_SITE == PER_SITE - 1:
                site = make_site(protocol)
            found.connections += 1
            name = f"{protocol} {stage} {seed} {found.connections}"
            _connection(protocol, stage, name, site, pool, deadly, opening, found)
            if errors.texts:
                found.wrong.append(f"connection {name}: {errors.texts[0][:1500]}")
                errors.texts.clear()
                site = make_site(protocol)
    finally:
        log.removeHandler(errors)
        log.setLevel(before[0])
        log.propagate = before[1]
        gc.unfreeze()
    return found


def _survives(protocol: str, site: Site, data: bytes, opening: list[bytes]) -> bool:
    """Return whether a new connection survives a piece."""
    peer = FuzzPeer(site, protocol)
    session = connect(protocol, "after", site, peer, random.Random(0))
    site.run()
    for piece in (*opening, data):
        session.data_received(piece)
        site.run()
    survives = not peer.closed
    peer.closed = True
    session.connection_lost()
    site.run()
    return survives


def _connection(
    protocol: str,
    stage: str,
    name: str,
    site: Site,
    pool: list[tuple[bytes, int]],
    deadly: list[tuple[bytes, int]],
    opening: list[bytes],
    found: Found,
) -> None:
    chance = random.Random(name)
    wild = chance.choice((0.0, 0.0, 0.003, 0.01, 0.3)) if stage == "after" else chance.choice((0.0, 0.3, 1.0))
    peer = FuzzPeer(site, protocol)

    def turn(data: bytes, frames: int) -> None:
        begun = time.thread_time()
        session.data_received(data)
        site.run()
        taken = time.thread_time() - begun
        found.frames += 1 if peer.closed else frames
        if taken > SLOW:
            found.slow += 1
            if taken > TOO_SLOW:
                found.wrong.append(f"connection {name}: a turn took {taken * 1000:.0f} ms")
        if taken > found.longest:
            found.longest, found.at = taken, name

    try:
        session = connect(protocol, stage, site, peer, chance)
        site.run()
        if stage == "after":
            for data in opening:
                turn(data, 1)
        elif chance.random() < 0.5:
            turn(first_0(chance, protocol), 1)
        for _ in range(PIECES):
            if peer.closed:
                break
            pieces, frames = [], 0
            for _ in range(chance.choice((1, 2, 8, 20))):
                chosen = deadly if deadly and chance.random() < 0.002 else pool
                data, count = chosen[int(chance.random() * len(chosen))]
                if stage == "before" and chance.random() < 0.5:
                    data, count = first_0(chance, protocol), 1
                pieces.append(mutated(data, chance) if wild and chance.random() < wild else data)
                frames += count
            answers, peer.answers = peer.answers, b""
            turn(answers + b"".join(pieces), frames)
        if not peer.closed:
            peer.closed = True
        session.connection_lost()
        site.run()
    except Exception as error:
        found.wrong.append(f"connection {name}: {type(error).__name__}: {error}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocol", nargs="+", choices=PROTOCOLS, default=list(PROTOCOLS))
    parser.add_argument("--stage", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--minutes", type=float, default=1.0, help="minutes per protocol and stage")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    failed = False
    for protocol in given.protocol:
        for stage in given.stage:
            begun = time.monotonic()
            found = run(protocol, stage, given.seed, begun + given.minutes * 60)
            rate = found.frames / (time.monotonic() - begun)
            print(
                f"{protocol} {stage} authentication: {found.frames} frames on {found.connections} connections,"
                f" {rate:.0f} per second, {found.slow} turns over 20 ms, longest {found.longest * 1000:.1f} ms"
                f" ({found.at}), {len(found.wrong)} errors",
                flush=True,
            )
            for text in found.wrong[:5]:
                print(f"  {text}")
            failed = failed or bool(found.wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

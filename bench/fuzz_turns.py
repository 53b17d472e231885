"""Search for long turns: a hill climber over scripts of client operations, scored by the longest turn of the event loop.

    PYTHONPATH=src:. python -m bench.fuzz_turns --seed 1 --minutes 10

A script is a list of operations with numbers. It runs against its own broker, over AMQP 0-9-1, 0-9 and 1.0. Each round
changes the best script so far a little, and keeps the change if the longest turn became longer. Prints every new best
time, and at the end the script, which `--replay SCRIPT.json` measures again. Exits with 1 if a turn exceeds --bound.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.turn_lab import Client, Lab, running
from leveret.wire.amqp0.model import Version
from leveret.wire.amqp0.specs import V0_9, V0_9_1
from leveret.wire.amqp10.composite import Performative
from leveret.wire.amqp10.messaging import Source, Target
from leveret.wire.amqp10.output import Output
from leveret.wire.amqp10.transport import Attach, Begin, Detach, Disposition, Flow, Open

Step = tuple[str, int]
QUEUES = 4


class Player:
    """Plays a script: one connection of each 0-x protocol, reopened after the broker has closed it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.clients: dict[str, Client] = {}

    def client(self, version: Version = V0_9_1) -> Client:
        name = "0-9" if version is V0_9 else "0-9-1"
        client = self.clients.get(name)
        if client is None or client.closed:
            client = self.lab.connect(version=version)
            client.open_channel()
            for number in range(QUEUES):
                client.send(1, "queue.declare", queue=f"q{number}")
            client.send(1, "exchange.declare", exchange="h", type="headers")
            client.send(1, "exchange.declare", exchange="t", type="topic")
            self.clients[name] = client
        return client

    def play(self, script: list[Step]) -> None:
        for name, number in script:
            try:
                ACTIONS[name](self, number)
            except (OSError, RuntimeError, ValueError):  # ValueError: the client refuses to send, such as a second open
                self.drop(self)
        for client in self.clients.values():
            with contextlib.suppress(OSError, RuntimeError):
                client.sync()
        self.drop(self)

    @staticmethod
    def drop(player: Player, number: int = 0) -> None:
        for client in player.clients.values():
            client.drop()
        player.clients.clear()


def _publish(player: Player, number: int) -> None:
    client = player.client()
    for index in range(number % 20_000):
        client.publish(f"q{index % QUEUES}")


def _publish_old(player: Player, number: int) -> None:
    client = player.client(V0_9)
    for _ in range(number % 5000):
        client.publish("q0")


def _copies(player: Player, number: int) -> None:
    player.client().publish(
        "a",
        exchange="h",
        headers={
            "CC": [f"k{index}" for index in range(number % 1000)],
            **{f"h{index}": 1 for index in range(number % 200)},
        },
    )


def _topic(player: Player, number: int) -> None:
    player.client().publish(".".join(["a"] * (number % 128)), exchange="t")


def _bind_headers(player: Player, number: int) -> None:
    client = player.client()
    for index in range(number % 5000):
        client.send(
            1,
            "queue.bind",
            queue=f"q{index % QUEUES}",
            exchange="h",
            no_wait=True,
            arguments={"h0": 1, f"h{index % 200}": index % 3, "n": index},
        )


def _bind_topics(player: Player, number: int) -> None:
    client = player.client()
    chance = random.Random(number)
    for _ in range(number % 3000):
        words = [chance.choice("a#*") for _ in range(chance.randrange(1, 100))]
        client.send(1, "queue.bind", queue="q0", exchange="t", routing_key=".".join(words), no_wait=True)


def _consume(player: Player, number: int) -> None:
    client = player.client()
    for index in range(number % 3000):
        client.send(
            1,
            "basic.consume",
            queue=f"q{index % QUEUES}",
            no_wait=True,
            no_local=bool(number % 2),
            consumer_tag=f"{number}-{index}-{time.monotonic_ns()}",
            arguments={"x-priority": index % (1 + number % 7)},
        )


def _get(player: Player, number: int) -> None:
    client = player.client()
    for _ in range(number % 5000):
        client.send(1, "basic.get", queue="q0", no_ack=bool(number % 2))


def _method(name: str, **arguments: object) -> Callable[[Player, int], None]:
    def act(player: Player, number: int) -> None:
        player.client().send(1, name, **arguments)

    return act


def _ack(player: Player, number: int) -> None:
    player.client().engine.send_ack(1, 0, True)


def _nack(player: Player, number: int) -> None:
    player.client().engine.send_nack(1, 0, True, bool(number % 2))


def _qos(player: Player, number: int) -> None:
    player.client().send(
        1, "basic.qos", prefetch_count=number % 100, prefetch_size=number % 3 * 1000, **{"global": bool(number % 2)}
    )


def _channels(player: Player, number: int) -> None:
    client = player.client()
    for index in range(2, 2 + number % 5000):
        client.send(index, "channel.open")


def _frames(player: Player, number: int) -> None:
    """Send AMQP 1.0 sessions, links, credit and dispositions over wide ranges."""
    output = Output(1 << 16)
    frames: list[Performative] = [Open("fuzz"), Begin(0, 1 << 31, 1 << 31)]
    for index in range(number % 500):
        frames.append(
            Attach(
                f"l{index}",
                index,
                bool(index % 2),
                source=Source(f"q{index % QUEUES}"),
                target=Target(f"q{index % QUEUES}"),
                initial_delivery_count=0 if not index % 2 else None,
            )
        )
        frames.append(Flow(1 << 31, 0, 1 << 31, 0, index, 0, 1000))
    frames.append(Disposition(True, 0, (1 << 32) - 1, True))
    frames.extend(Detach(index, True) for index in range(number % 500))
    for frame in frames:
        output.send(frame)
    with contextlib.suppress(OSError), player.lab.raw() as raw:
        raw.sendall(b"AMQP\x00\x01\x00\x00" + output.to_send())
        raw.settimeout(1)
        while raw.recv(1 << 18):
            pass


ACTIONS: dict[str, Callable[[Player, int], None]] = {
    "publish": _publish,
    "publish 0-9": _publish_old,
    "copies": _copies,
    "topic": _topic,
    "bind headers": _bind_headers,
    "bind topics": _bind_topics,
    "consume": _consume,
    "get": _get,
    "ack": _ack,
    "nack": _nack,
    "qos": _qos,
    "channels": _channels,
    "frames 1.0": _frames,
    "drop": Player.drop,
    "purge": _method("queue.purge", queue="q0"),
    "delete queue": _method("queue.delete", queue="q1"),
    "delete exchange": _method("exchange.delete", exchange="h"),
    "recover": _method("basic.recover", requeue=True),
    "select": _method("tx.select"),
    "commit": _method("tx.commit"),
    "rollback": _method("tx.rollback"),
}


def mutate(script: list[Step], chance: random.Random) -> list[Step]:
    """Return the script with one change: a step added, removed or renumbered, or two steps swapped."""
    changed = list(script)
    kind = chance.randrange(4) if changed else 0
    at = chance.randrange(len(changed) + 1)
    if kind == 0 or at == len(changed):
        changed.insert(at, (chance.choice(list(ACTIONS)), chance.randrange(1 << 16)))
    elif kind == 1:
        changed[at] = (changed[at][0], chance.randrange(1 << 16))
    elif kind == 2 and len(changed) > 1:
        del changed[at]
    else:
        other = chance.randrange(len(changed))
        changed[at], changed[other] = changed[other], changed[at]
    return changed


def score(script: list[Step]) -> float:
    """Return the longest turn of a broker that plays a script, in milliseconds."""
    with running() as lab:
        lab.settle()
        lab.reset()  # exclude the start
        Player(lab).play(script)
        lab.settle()
        return lab.longest()


def climb(seed: int, seconds: float, length: int) -> tuple[float, list[Step]]:
    chance = random.Random(seed)
    best: list[Step] = [(chance.choice(list(ACTIONS)), chance.randrange(1 << 16)) for _ in range(length)]
    longest = score(best)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        changed = mutate(best, chance)
        found = score(changed)
        if found > longest:
            longest, best = found, changed
            print(f"{longest:8.1f} ms  {best}", flush=True)
    return longest, best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--length", type=int, default=8, help="number of operations in the first script")
    parser.add_argument("--bound", type=float, default=20.0, help="maximum milliseconds of a turn")
    parser.add_argument("--replay", type=Path, help="a file with a script")
    chosen = parser.parse_args()
    if chosen.replay is not None:
        script = [(str(name), int(number)) for name, number in json.loads(chosen.replay.read_text())]
        longest = score(script)
    else:
        longest, script = climb(chosen.seed, chosen.minutes * 60, chosen.length)
    print(f"longest turn {longest:.1f} ms (at most {chosen.bound:g})\n{json.dumps(script)}")
    return 0 if longest <= chosen.bound else 1


if __name__ == "__main__":
    sys.exit(main())

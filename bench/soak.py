"""Run mixed load, and report whether the broker's memory stays flat.

    python bench/soak.py                    ten minutes
    python bench/soak.py --seconds 60 --rate 500

The load: persistent publishes with confirms, acknowledgements in any order, requeues, transactions, fan-out, dead letters
by expiry and rejection, priorities, bodies from zero to two megabytes, short-lived queues, consumers, channels and
connections, direct reply-to, and clients that vanish. Memory, disk, queue depths and rates are sampled; the verdict
compares the memory of the last third with that of the middle third (the first third is a warm-up). Exits with 1 if memory
grew by more than `--growth` percent, a client was refused, a body was damaged, or the broker logged an exception.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from pamqp import commands  # noqa: E402

from bench.fuzz import AMQP_1_0, POOLS, PROTOCOLS, SASL_1_0, login, mutated  # noqa: E402
from tests.support.broker import LeveretProcess  # noqa: E402
from tests.support.peers.async_amqp091 import Channel, Closed, Connection, Delivery  # noqa: E402

PERSISTENT = commands.Basic.Properties(delivery_mode=2)
REPLY = "amq.rabbitmq.reply-to"


class Soak:
    """The clients and their counts."""

    def __init__(
        self, broker: LeveretProcess, seconds: float, rate: float, seed: int, only: set[str], attacks: bool = False
    ) -> None:
        self.broker = broker
        self.only = only
        self.attacks = attacks
        self.until = time.monotonic() + seconds
        self.rate = rate
        self.random = random.Random(seed)
        self.counts: dict[str, int] = {}
        self.problems: list[str] = []
        self.memory: list[tuple[float, int]] = []

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    @property
    def going(self) -> bool:
        return time.monotonic() < self.until

    async def run(self) -> None:
        await self.declare()
        clients: list[Callable[[], Awaitable[None]]] = [
            self.publish_work, self.publish_work, self.consume_work, self.consume_work, self.transactions, self.fan_out,
            self.expiring, self.large, self.short_lived, self.requests, self.vanishing, self.sample,
        ]  # fmt: skip
        if self.attacks:
            clients += [self.attack, self.attack, self.linger]
        chosen = [client for client in clients if not self.only or client.__name__ in {*self.only, "sample"}]
        await asyncio.gather(*(self.guard(client) for client in chosen))

    async def guard(self, client: Callable[[], Awaitable[None]]) -> None:
        try:
            await client()
        except (Closed, OSError, EOFError, AssertionError, TimeoutError) as error:
            self.problems.append(f"{client.__name__}: {type(error).__name__} {error}")

    async def open(self) -> tuple[Connection, Channel]:
        connection = await Connection.open(self.broker, heartbeat=10)
        return connection, await connection.channel()

    async def pause(self, share: float = 1.0) -> None:
        """Pause to limit the client to its share of `rate` steps per second."""
        await asyncio.sleep(self.random.expovariate(self.rate * share))

    async def declare(self) -> None:
        connection, channel = await self.open()
        await channel.declare("dead", durable=True, arguments={"x-max-length": 1000})
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        await channel.declare("work", durable=True, arguments=dead)
        await channel.declare("expiring", durable=True, arguments=dead | {"x-message-ttl": 200})
        await channel.declare("priority", durable=True, arguments={"x-max-priority": 5})
        await channel.declare("large", durable=True)
        await channel.call(commands.Exchange.Declare(exchange="fan", exchange_type="fanout", durable=True))
        for number in range(5):
            queue = await channel.declare(f"fan.{number}", durable=True, arguments={"x-max-length": 500})
            await channel.call(commands.Queue.Bind(queue=queue, exchange="fan", routing_key=""))
        await connection.close()

    async def publish_work(self) -> None:
        connection, channel = await self.open()
        await channel.call(commands.Confirm.Select())
        waiting = 0

        def on_confirm(tag: int, multiple: bool, ack: bool) -> None:
            nonlocal waiting
            waiting = channel.published - tag
            if not ack:
                self.problems.append("a nack")

        channel.on_confirm = on_confirm
        while self.going:
            if waiting < 200:
                channel.publish("", "work", self.random.randbytes(self.random.randint(0, 2000)), PERSISTENT)
                waiting += 1
                self.count("published")
            await connection.drain()
            await self.pause()
        await connection.close()

    async def consume_work(self) -> None:
        connection, channel = await self.open()
        held: list[int] = []
        channel.on_delivery = lambda delivery: held.append(delivery.method.delivery_tag)
        await channel.call(commands.Basic.Qos(prefetch_count=100))
        await channel.consume("work")
        while self.going or await channel.count("work"):
            await asyncio.sleep(0.02)
            self.random.shuffle(held)
            for tag in held:
                dice = self.random.random()
                if dice < 0.9:
                    channel.ack(tag)
                elif dice < 0.95:
                    channel.send(commands.Basic.Nack(tag, False, True))
                else:
                    channel.send(commands.Basic.Reject(tag, False))
                self.count("settled")
            held.clear()
            if connection.closed is not None:
                raise connection.closed
        await connection.close()

    async def transactions(self) -> None:
        connection, channel = await self.open()
        await channel.call(commands.Tx.Select())
        arrived: list[Delivery] = []
        channel.on_delivery = arrived.append
        await channel.call(commands.Basic.Qos(prefetch_count=20))
        await channel.consume("priority")
        while self.going:
            for _ in range(self.random.randint(1, 10)):
                properties = commands.Basic.Properties(delivery_mode=2, priority=self.random.randint(0, 5))
                channel.publish("", "priority", b"x" * self.random.randint(0, 500), properties)
            for delivery in arrived:
                channel.ack(delivery.method.delivery_tag)
            if self.random.random() < 0.9:
                arrived.clear()
                await channel.call(commands.Tx.Commit())
            else:
                # The rollback undoes the acknowledgements, too; the next transaction sends them again.
                await channel.call(commands.Tx.Rollback())
            self.count("transactions")
            await self.pause(0.1)
        await connection.close()

    async def fan_out(self) -> None:
        connection, channel = await self.open()
        while self.going:
            channel.publish("fan", "", b"x" * self.random.randint(0, 3000), PERSISTENT)
            if self.random.random() < 0.3:
                await channel.get(f"fan.{self.random.randint(0, 4)}")
            self.count("fanned out")
            await self.pause(0.3)
        await connection.close()

    async def expiring(self) -> None:
        connection, channel = await self.open()
        while self.going:
            channel.publish("", "expiring", b"x" * 200, PERSISTENT)
            channel.publish("", "dead", b"x" * 200, commands.Basic.Properties(expiration="100"))
            self.count("expiring", 2)
            await connection.drain()
            await self.pause(0.2)
        await connection.close()

    async def large(self) -> None:
        connection, channel = await self.open()
        while self.going:
            body = self.random.randbytes(1000) * self.random.randint(1, 2000)
            channel.publish("", "large", body, PERSISTENT)
            await connection.drain()
            delivery = await channel.get("large")
            while delivery is None:
                delivery = await channel.get("large")
            assert delivery.body == body, "a large body was delivered with other content"
            self.count("large")
            await asyncio.sleep(0.2)
        await connection.close()

    async def short_lived(self) -> None:
        """Connections, channels, queues, bindings and consumers that come and go."""
        while self.going:
            connection, channel = await self.open()
            for number in range(self.random.randint(1, 5)):
                queue = await channel.declare(exclusive=True)
                await channel.call(commands.Queue.Bind(queue=queue, exchange="amq.topic", routing_key=f"key.{number}.#"))
                await channel.consume(queue, no_ack=True)
                other = await connection.channel()
                other.publish("amq.topic", f"key.{number}.x", b"hello")
                await other.close()
            name = f"temporary.{self.random.randint(0, 1 << 30)}"
            await channel.declare(name, durable=self.random.random() < 0.5, arguments={"x-expires": 1000})
            channel.publish("", name, b"x" * 1000, PERSISTENT)
            if self.random.random() < 0.5:
                await channel.call(commands.Queue.Delete(queue=name))
            else:
                await channel.count(name)
            await connection.close()
            self.count("short-lived connections")
            await asyncio.sleep(0.05)

    async def requests(self) -> None:
        client, asking = await self.open()
        server, answering = await self.open()
        queue = await answering.declare(exclusive=True)
        answers: asyncio.Queue[bytes] = asyncio.Queue()
        asking.on_delivery = lambda delivery: answers.put_nowait(delivery.body)

        def reply(delivery: Delivery) -> None:
            answering.publish("", delivery.properties.reply_to, delivery.body)

        answering.on_delivery = reply
        await asking.consume(REPLY, no_ack=True)
        await answering.consume(queue, no_ack=True)
        while self.going:
            question = self.random.randbytes(20)
            asking.publish("", queue, question, commands.Basic.Properties(reply_to=REPLY))
            answer = await asyncio.wait_for(answers.get(), 20)
            assert answer == question, "the reply differs from the request"
            self.count("requests")
            await self.pause(0.1)
        await client.close()
        await server.close()

    async def vanishing(self) -> None:
        """Clients that disconnect without a close while they have unacked messages."""
        while self.going:
            connection, channel = await self.open()
            await channel.call(commands.Basic.Qos(prefetch_count=10))
            await channel.consume("work")
            channel.publish("", "work", b"from one who vanished", PERSISTENT)
            self.count("published")
            await channel.count("work")
            connection.abort()
            self.count("vanished")
            await asyncio.sleep(0.3)

    async def attack(self) -> None:
        """Clients that send invalid input: garbage, broken handshakes, wrong logins, randomly changed frames."""
        pools = [pool(self.random) for pool in POOLS.values()]
        headers = (b"AMQP\x00\x00\x09\x01", b"AMQP\x01\x01\x00\x09", AMQP_1_0, SASL_1_0)
        while self.going:
            reader, writer = await asyncio.open_connection(self.broker.host, self.broker.port)
            number = self.random.randrange(len(PROTOCOLS))
            protocol = PROTOCOLS[number]
            pieces = [self.random.choice(headers)]
            if self.random.random() < 0.6:
                # Often late enough to reach the code after the login.
                pieces = [{"0-9": headers[1], "0-9-1": headers[0], "1.0": AMQP_1_0}[protocol]]
                pieces += [data.replace(b"user", self.random.choice((b"guest", b"nobdy"))) for data in login(protocol)]
            pieces += [
                mutated(self.random.choice(pools[number]), self.random)
                if self.random.random() < 0.2
                else self.random.choice(pools[number])
                for _ in range(30)
            ]
            try:
                for data in pieces:
                    writer.write(data)
                    await writer.drain()
                    await asyncio.sleep(self.random.random() * 0.01)
                if self.random.random() < 0.5:
                    await asyncio.wait_for(reader.read(1 << 20), 0.2)
            except (OSError, TimeoutError):
                pass
            writer.transport.abort()
            self.count("attacks")

    async def linger(self) -> None:
        """Clients that connect, send nothing or little, and stay."""
        lingering: list[asyncio.StreamWriter] = []
        while self.going:
            try:
                _, writer = await asyncio.open_connection(self.broker.host, self.broker.port)
                writer.write(b"AMQP\x00\x00\x09\x01"[: self.random.randrange(9)])
                lingering.append(writer)
            except OSError:
                pass
            if len(lingering) > 20:
                lingering.pop(self.random.randrange(20)).transport.abort()
            self.count("lingered")
            await asyncio.sleep(0.1)
        for writer in lingering:
            writer.transport.abort()

    async def sample(self) -> None:
        begun = time.monotonic()
        connection, channel = await self.open()
        shown = 0.0
        while self.going:
            await asyncio.sleep(1)
            now = time.monotonic() - begun
            self.memory.append((now, self.broker.memory()))
            if now - shown >= 10:
                shown = now
                disk = sum(file.stat().st_size for file in self.broker.data_dir.iterdir() if file.is_file())
                depths = {queue: await channel.count(queue) for queue in ("work", "dead", "fan.0", "priority")}
                print(
                    f"{now:6.0f} s  memory {self.memory[-1][1] / 2**20:6.1f} MB  disk {disk / 2**20:6.1f} MB  "
                    f"cpu {self.broker.cpu_seconds():6.1f} s  published {self.counts.get('published', 0)}  {depths}",
                    flush=True,
                )
        await connection.close()

    def verdict(self, growth: float) -> bool:
        """Print whether memory is flat, comparing the medians of the thirds."""
        third = len(self.memory) // 3
        middle = statistics.median(size for _, size in self.memory[third : 2 * third])
        last = statistics.median(size for _, size in self.memory[2 * third :])
        grown = (last / middle - 1) * 100
        flat = grown <= growth
        print(
            f"memory: {middle / 2**20:.1f} MB in the middle third, {last / 2**20:.1f} MB in the last: {grown:+.1f} %, "
            f"{'flat' if flat else 'NOT FLAT'}"
        )
        print(", ".join(f"{number} {what}" for what, number in sorted(self.counts.items())))
        for problem in self.problems[:20]:
            print("PROBLEM", problem)
        return flat and not self.problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--rate", type=float, default=500, help="steps per second of each busy client")
    parser.add_argument("--growth", type=float, default=5, help="maximum growth of memory in percent")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--attacks", action="store_true", help="also attack the broker with invalid input")
    parser.add_argument("--only", nargs="*", default=(), help="names of the clients to run, to find what makes memory grow")
    parser.add_argument("--directory", type=Path, help="directory for the data; a temporary one by default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="leveret-soak-") as temporary:
        broker = LeveretProcess(arguments.directory or Path(temporary))
        with broker.start():
            soak = Soak(broker, arguments.seconds, arguments.rate, arguments.seed, set(arguments.only), arguments.attacks)
            asyncio.run(soak.run())
            flat = soak.verdict(arguments.growth)
        broker.check_log()
    print(f"soak of {arguments.seconds:.0f} s with seed {arguments.seed}: {'passed' if flat else 'FAILED'}")
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())

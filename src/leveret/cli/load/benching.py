"""A run of `leveret bench`, from the declaration of its queues to their deletion."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from leveret.cli.client_command import open_connection, run, say
from leveret.cli.failed import INCOMPLETE
from leveret.cli.load.child import Child
from leveret.cli.load.display import Display
from leveret.cli.load.plan import Plan, shares
from leveret.cli.load.report import Report
from leveret.cli.load.results import Results
from leveret.cli.load.worker import Worker
from leveret.client.errors import Error, NotFound

if TYPE_CHECKING:
    from leveret.client._async.connection import Amqp10Connection, Connection

# Seconds between samples, and between displayed intervals.
_SAMPLE_INTERVAL: Final = 0.25
_SHOW_INTERVAL: Final = 1.0
# Seconds without a delivery after which the run ends.
_DELIVERY_TIMEOUT: Final = 10.0


def bench(plan: Plan, processes: int, json_path: Path | None, quiet: bool) -> None:
    """Run the benchmark, and show and write its results."""
    run(_Bench(plan, processes, json_path, quiet).run)


class _Bench:
    def __init__(self, plan: Plan, processes: int, json_path: Path | None, quiet: bool) -> None:
        self._plan = plan
        self._json_path = json_path
        self._quiet = quiet
        parts = shares(plan, processes)
        self._workers = [Worker(plan, parts[0])] if len(parts) == 1 else [Child(plan, part) for part in parts]
        self._results = Results(plan, "", len(parts))

    async def run(self) -> int:
        plan = self._plan
        results = self._results
        async with open_connection(plan.urls, "bench", reconnect=False) as connection:
            results.broker = _describe_broker(connection)
            try:
                await self._declare(connection)
                try:
                    await asyncio.gather(*(worker.open() for worker in self._workers))
                    with Display(plan, results.broker, self._quiet) as display:
                        await self._measure(display)
                finally:
                    await asyncio.gather(*(worker.close() for worker in self._workers), return_exceptions=True)
            finally:
                await self._delete(connection)
                self._show()
        return 0 if results.complete else INCOMPLETE

    def _show(self) -> None:
        results = self._results
        if not results.at:
            return
        if str(self._json_path) != "-":
            results.show()
        if self._json_path is not None:
            results.write(self._json_path)

    # Topology

    async def _declare(self, connection: Connection | Amqp10Connection) -> None:
        plan = self._plan
        async with connection.open_channel() as channel:
            if plan.exchange_name:
                await channel.declare_exchange(plan.exchange_name, plan.exchange, durable=True, auto_delete=True)
            for queue in range(plan.queues):
                name = plan.queue_name(queue)
                # If this process is killed, the broker deletes the queues with their consumers.
                await channel.declare_queue(name, durable=True, auto_delete=True)
                if plan.exchange_name:
                    await channel.bind_queue(name, plan.exchange_name, *plan.binding(queue))

    async def _delete(self, connection: Connection | Amqp10Connection) -> None:
        """Delete the queues, including after a partial declaration."""
        plan = self._plan
        try:
            channel = await connection.open_channel()
            for queue in range(plan.queues):
                try:
                    await channel.delete_queue(plan.queue_name(queue))
                except NotFound:  # some brokers treat this as an error
                    channel = await connection.open_channel()
            if plan.exchange_name:
                await channel.delete_exchange(plan.exchange_name)
        except NotFound:
            pass
        except Error as error:
            say(f"cannot delete queues '{plan.queue_name(0)}' and following: {error}")

    # Measurement

    async def _measure(self, display: Display) -> None:
        results = self._results
        # The first report excludes the CPU time of the startup.
        results.begin(await self._sample())
        await asyncio.gather(*(worker.start() for worker in self._workers))
        try:
            while not self._is_over():
                await asyncio.sleep(self._sample_delay())
                results.take(await self._sample())
                if results.at - results.shown_at >= _SHOW_INTERVAL:
                    display.show(results.interval(), results.total)
        except asyncio.CancelledError:
            results.interrupted = True
            results.take(await self._sample())
            raise
        except (Error, click.ClickException):
            results.interrupted = True
            raise
        finally:
            results.end()

    async def _sample(self) -> Report:
        report = Report()
        for part in await asyncio.gather(*(worker.report() for worker in self._workers)):
            report.add(part)
        return report

    def _sample_delay(self) -> float:
        seconds = self._plan.seconds
        return _SAMPLE_INTERVAL if seconds is None else max(0.0, min(_SAMPLE_INTERVAL, seconds - self._results.at))

    def _is_over(self) -> bool:
        plan, results = self._plan, self._results
        if plan.seconds is not None and results.at >= plan.seconds:
            return True
        if results.total.ended < plan.publishers:
            return False
        return not plan.consumers or results.is_consumed or results.silent >= _DELIVERY_TIMEOUT


def _describe_broker(connection: Connection | Amqp10Connection) -> str:
    properties = connection.server_properties
    name = " ".join(str(properties[key]) for key in ("product", "version") if isinstance(properties.get(key), str))
    return f"{name or 'unknown'} at {connection.parameters.host}:{connection.parameters.port}"

"""A worker in a process of its own, spoken to in lines of JSON.

Each line on standard input is answered by one on standard output, {"result": ...} or {"error": text, "code": exit code}:
{"plan": ..., "share": ...} opens, then {"call": "start"} and {"call": "report"}. The end of the input ends it.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from dataclasses import asdict
from typing import Any, Final

import click

from leveret._isolation import python_command
from leveret.cli.client_command import failed
from leveret.cli.failed import NO_BROKER, Failed
from leveret.cli.load.plan import Plan, Share
from leveret.cli.load.report import Report, load_report
from leveret.cli.load.worker import Worker
from leveret.client.errors import Error

# Seconds that a child has to close its connections.
_CLOSING: Final = 15.0
# Octets of one line: a report of every class of its two histograms is a fraction of it.
_LONGEST_LINE: Final = 1 << 20


class Child:
    """The same as `Worker`, by another process."""

    def __init__(self, plan: Plan, share: Share) -> None:
        self._begin = {"plan": asdict(plan), "share": asdict(share)}
        self._process: asyncio.subprocess.Process | None = None

    async def open(self) -> None:
        # A Ctrl-C of the terminal is for the parent, which ends its children in order.
        self._process = await asyncio.create_subprocess_exec(
            *python_command("leveret.cli.load.child"), stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, start_new_session=True, limit=_LONGEST_LINE)
        await self._ask(self._begin)

    async def start(self) -> None:
        await self._ask({"call": "start"})

    async def report(self) -> Report:
        return load_report(await self._ask({"call": "report"}))

    async def close(self) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(_CLOSING):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _ask(self, request: dict[str, Any]) -> Any:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
        except ConnectionError:
            line = b""
        if not line:
            raise Failed(f"process {process.pid}, which made a part of the load, has ended", NO_BROKER)
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"], answer["code"])
        return answer["result"]


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    requests = asyncio.StreamReader(limit=_LONGEST_LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    worker: Worker | None = None
    try:
        while line := await requests.readline():
            request = json.loads(line)
            result: Any = None
            try:
                if worker is None:
                    worker = Worker(_plan(request["plan"]), Share(**request["share"]))
                    await worker.open()
                elif request["call"] == "start":
                    await worker.start()
                else:
                    result = (await worker.report()).dump()
                answer = {"result": result}
            except Error as error:
                answer = _error(failed(error))
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    finally:
        if worker is not None:
            await worker.close()


def _plan(values: dict[str, Any]) -> Plan:
    return Plan(**{**values, "urls": tuple(values["urls"])})


def _error(error: click.ClickException) -> dict[str, Any]:
    return {"error": error.message, "code": error.exit_code}


def main() -> None:
    """The process: requests on standard input, answers on standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(_serve())

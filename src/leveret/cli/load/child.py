"""A worker in a separate process, controlled by lines of JSON.

The process answers each line on standard input with a line on standard output: {"result": ...} or {"error": text,
"code": exit code}. The first request is {"plan": ..., "share": ...}, followed by {"call": "start"} and {"call": "report"}.
The process exits at the end of its input.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from dataclasses import asdict
from typing import Final

import click

from leveret._isolation import python_command
from leveret.cli.client_command import failed
from leveret.cli.failed import NO_BROKER, Failed
from leveret.cli.load.plan import Plan, Share
from leveret.cli.load.report import Report, load_report
from leveret.cli.load.worker import Worker
from leveret.cli.output import Item, Reply
from leveret.client.errors import Error

# Seconds to wait for a child to close its connections.
_CLOSE_TIMEOUT: Final = 15.0
# Maximum bytes per line. The largest report is much smaller.
_MAX_LINE: Final = 1 << 20


class Child:
    """A `Worker` in another process."""

    def __init__(self, plan: Plan, share: Share) -> None:
        self._begin = {"plan": asdict(plan), "share": asdict(share)}
        self._process: asyncio.subprocess.Process | None = None

    async def open(self) -> None:
        # In its own session, so that Ctrl-C interrupts only the parent, which then stops its children.
        self._process = await asyncio.create_subprocess_exec(
            *python_command("leveret.cli.load.child"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=_MAX_LINE,
        )
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
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _ask(self, request: Item) -> Reply:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
        except ConnectionError:
            line = b""
        if not line:
            raise Failed(f"client process {process.pid} exited unexpectedly", NO_BROKER)
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"], answer["code"])
        return answer["result"]


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    requests = asyncio.StreamReader(limit=_MAX_LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    worker: Worker | None = None
    try:
        while line := await requests.readline():
            request = json.loads(line)
            result: Reply = None
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


def _plan(values: Item) -> Plan:
    return Plan(**{**values, "urls": tuple(values["urls"])})


def _error(error: click.ClickException) -> Item:
    return {"error": error.message, "code": error.exit_code}


def main() -> None:
    """Serve requests from standard input, with replies on standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(_serve())

"""Payloads decoded in processes that end after each, so that none can stop or damage the HTTP process."""

from __future__ import annotations

import asyncio
import subprocess
from typing import Final

import msgspec

from leveret._isolation import python_command
from leveret.management.decoding.jobs import TIME_LIMIT, Decoded, Job

# Maximum number of processes at a time.
_MAX_PROCESSES: Final = 2
# Seconds after which a process is killed, however little processor time it got.
_TIMEOUT: Final = 30


class PayloadDecoder:
    """Executes jobs of decoding."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_MAX_PROCESSES)

    async def execute(self, job: Job) -> Decoded:
        """Return the result of a job."""
        async with self._free:
            return await _run(job)


async def _run(job: Job) -> Decoded:
    process = await asyncio.create_subprocess_exec(
        *python_command("leveret.management.decoding.main"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(_TIMEOUT):
            output, _ = await process.communicate(msgspec.json.encode(job))
    except TimeoutError:
        return Decoded(error=f"it takes longer than {_TIMEOUT} s to be decoded")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        return msgspec.json.decode(output, type=Decoded)
    except msgspec.DecodeError:  # a limit or a crash has ended the process
        return Decoded(error=f"it is nested too deeply, or takes longer than {TIME_LIMIT} s to be decoded")

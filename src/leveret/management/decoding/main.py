"""Entry point of the process that executes one job: JSON from standard input, JSON on standard output.

Payloads and schemas come from any client. The process has limits of time and memory, and no connection to the broker. A
crash in a library ends only this process.
"""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from importlib import import_module

import msgspec

from leveret._build import installation
from leveret.management.decoding.jobs import MEMORY_LIMIT, TIME_LIMIT, Decoded, Job
from leveret.management.decoding.rows import shorten


def main() -> None:
    """Execute a job."""
    for limit, value in ((resource.RLIMIT_AS, MEMORY_LIMIT), (resource.RLIMIT_CPU, TIME_LIMIT), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # not supported by the system
            resource.setrlimit(limit, (value, value))
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    try:
        result = msgspec.json.encode(_execute(job))
    except MemoryError:
        result = msgspec.json.encode(Decoded(error=f"it needs more than {MEMORY_LIMIT >> 20} MiB to be decoded"))
    sys.stdout.buffer.write(result)
    sys.stdout.buffer.flush()
    os._exit(0)  # without freeing a large value piece by piece


def _execute(job: Job) -> Decoded:
    try:
        decoder = import_module(f"leveret.management.decoding.{job.format}_payloads")
    except ImportError as error:
        return Decoded(error=f"{error.name} is not installed; {installation('payloads')}")
    try:
        found: Decoded = decoder.decode(job)
    except MemoryError:
        raise
    except RecursionError:
        return Decoded(error="it is nested too deeply")
    except Exception as error:  # the libraries do not say what they raise for damaged payloads
        return Decoded(error=shorten(str(error) or type(error).__name__))
    return found

"""Checks in forked processes, which have imported everything already, and the sealer processes of their brokers.

A check that starts an interpreter spends most of its time on imports. Here one process runs a check itself and then forks,
so that its children inherit the imported modules and caches.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import IO, Any

from leveret.segments.process import SealerProcess

# Seconds after which a check fails because it does not end.
CHECK_TIMEOUT = 180.0
# The interval for polling a process that is about to end.
POLL_INTERVAL = 0.005

Check = Callable[[], list[str]]


class _Running:
    """A child: its checks, its output so far, and its deadline."""

    def __init__(self, numbers: list[int], pid: int, pipe: int) -> None:
        self.numbers = numbers
        self.pid = pid
        self.pipe = pipe
        self.data = b""
        self.deadline = time.monotonic() + CHECK_TIMEOUT * len(numbers)


class Forks:
    """Runs checks in children of this process.

    sealing  whether their brokers need a sealer process
    """

    def __init__(self, sealing: bool) -> None:
        self.sealing = sealing and find_spec("pyarrow") is not None
        self._running: list[_Running] = []
        if self.sealing:
            importlib.import_module("leveret.segments.process_main")

    def begin(self, checks: dict[int, Check]) -> None:
        """Run numbered checks in a child, one after the other, because a fork and its memory copies cost as much as a
        check.
        """
        read, write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            os.close(read)
            _child(list(checks.values()), self.sealing, write)
        os.close(write)
        self._running.append(_Running(list(checks), pid, read))

    def results(self, below: int) -> Iterator[tuple[int, list[str]]]:
        """Yield number and findings of the checks of children that end, until fewer than `below` children run."""
        while len(self._running) >= max(below, 1):
            ready, _, _ = select.select([running.pipe for running in self._running], [], [], 1.0)
            for running in list(self._running):
                if running.pipe in ready:
                    piece = os.read(running.pipe, 1 << 16)
                    running.data += piece
                    if not piece:
                        yield from self._end(running, "")
                elif time.monotonic() > running.deadline:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(running.pid, signal.SIGKILL)
                    yield from self._end(running, f"the check has not ended within {CHECK_TIMEOUT:g} s")

    def close(self) -> None:
        """Terminate the running checks."""
        for running in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            self._end(running, "")

    def _end(self, running: _Running, why: str) -> list[tuple[int, list[str]]]:
        """Return the findings of a child that has ended. The first check without a result is the one that ended it."""
        self._running.remove(running)
        os.close(running.pipe)
        _, status = os.waitpid(running.pid, 0)
        lines = running.data.split(b"\n")[:-1]
        found: list[list[str]] = [json.loads(line) for line in lines]
        if len(found) < len(running.numbers):
            code = os.waitstatus_to_exitcode(status)
            found.append([why or f"the check ended its process with status {code} and without a result"])
        return list(zip(running.numbers, found, strict=False))


def _child(checks: list[Check], sealing: bool, pipe: int) -> None:
    """Run checks, write one line of findings for each, and exit."""
    code = 1
    try:
        os.setpgid(0, 0)
        for check in checks:
            with _forked_sealer() if sealing else contextlib.nullcontext():
                try:
                    wrong = check()
                except BaseException:
                    wrong = [traceback.format_exc()]
            data = json.dumps(wrong).encode() + b"\n"
            while data:
                data = data[os.write(pipe, data) :]
        code = 0
    finally:
        os._exit(code)


# The sealer


class _ForkedProcess:
    """A sealer process that was forked in advance, in place of a `subprocess.Popen`."""

    def __init__(self) -> None:
        questions, stdin = os.pipe()
        stdout, answers = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            os.close(stdin)
            os.close(stdout)
            _seal(questions, answers)
        os.close(questions)
        os.close(answers)
        self.stdin: IO[bytes] = os.fdopen(stdin, "wb")
        self.stdout: IO[bytes] = os.fdopen(stdout, "rb")

    def poll(self) -> int | None:
        if self.returncode is None:
            # Another waiting thread may have reaped it.
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float = CHECK_TIMEOUT) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("sealer", timeout)
            time.sleep(POLL_INTERVAL)
        return code

    def kill(self) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def _seal(questions: int, answers: int) -> None:
    from leveret.segments.process_main import run

    try:
        with os.fdopen(questions, "rb") as asked, os.fdopen(answers, "wb") as answered:
            run(asked, answered)
    finally:
        os._exit(0)


@contextlib.contextmanager
def _forked_sealer() -> Iterator[None]:
    """Make the first sealer process of a broker one that was forked from this process; later ones are started as usual."""
    forked = _ForkedProcess()
    waiting = [forked]
    spawn = SealerProcess._spawn

    def spawned(self: SealerProcess) -> Any:
        return waiting.pop() if waiting else spawn(self)

    SealerProcess._spawn = spawned  # type: ignore[method-assign]
    try:
        yield
    finally:
        SealerProcess._spawn = spawn  # type: ignore[method-assign]
        with contextlib.suppress(OSError):
            forked.stdin.close()
        forked.kill()
        forked.wait()

"""Runs the command line as users do: processes with pipes."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.support.broker import ROOT, Broker

LIMIT = 120.0


@dataclass
class Done:
    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[bytes]:
        return self.out.splitlines()


@contextmanager
def interruptible() -> Iterator[None]:
    """Have processes that begin in the block end by SIGINT, which background jobs of a shell ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Program:
    """`leveret ...` with the URL of a broker."""

    def __init__(self, broker: Broker) -> None:
        self.environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "LEVERET_URL": broker.url()}

    def run(self, *arguments: str, input: bytes = b"", url: str | None = None) -> Done:
        """To its end."""
        with self.begin(*arguments, url=url) as process:
            out, err = process.communicate(input, LIMIT)
        return Done(process.returncode, out, err.decode())

    def ok(self, *arguments: str, input: bytes = b"") -> bytes:
        """The output of a run that succeeds."""
        done = self.run(*arguments, input=input)
        assert done.code == 0, (done.code, done.out[-1000:], done.err)
        return done.out

    @contextmanager
    def begin(self, *arguments: str, url: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """A process with pipes, which is killed at the end if it still runs."""
        environment = self.environment | ({} if url is None else {"LEVERET_URL": url})
        process = subprocess.Popen(
            [sys.executable, "-m", "leveret", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                assert pipe is not None
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass


def on_terminal(program: Program, *arguments: str, typed: bytes = b"") -> tuple[int, str]:
    """Return the exit code, and the output on a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "leveret", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=program.environment | {"TERM": "xterm"},
        start_new_session=True,
    )
    os.close(theirs)
    os.write(ours, typed)
    shown = b""
    try:
        while data := os.read(ours, 1 << 16):
            shown += data
    except OSError:
        pass  # the end of a terminal
    finally:
        os.close(ours)
    return process.wait(LIMIT), shown.decode()

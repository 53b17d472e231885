"""The terminals on the pages about the client: programs that are run, and their output.

A block of Python whose first line is a comment with a file's name is that file. A block of the language `console` is a
terminal: lines that begin with `$` are commands, the lines after one are what it prints. One that ends with `^C` runs
until its scene, which is a section of the page, is over; its first line says that it is ready.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

from tests.docs.pages import blocks, program_name
from tests.support.broker import ROOT

TIMEOUT = 120.0
INTERRUPT = "^C"


class Command(NamedTuple):
    """words  the program and its arguments
    lines     expected output
    stays     it runs until it is interrupted
    """

    words: list[str]
    lines: list[str]
    stays: bool


class Scene(NamedTuple):
    """A section of a page: all that happens in its terminals, from above to below."""

    heading: str
    commands: list[Command]


def programs(page: Path) -> dict[str, str]:
    """Return text by file name; the last one if a name repeats."""
    found = {}
    for block in blocks(page, "python"):
        name = program_name(block)
        if name:
            found[name] = block.text
    return found


def scenes(page: Path) -> list[Scene]:
    """The sections with terminals."""
    headings = [(match.start(), match[1]) for match in re.finditer("^## +(.+)$", page.read_text("utf-8"), re.MULTILINE)]
    text = page.read_text("utf-8")
    found: list[Scene] = []
    for block in blocks(page, "console"):
        at = sum(len(line) for line in text.splitlines(keepends=True)[: block.line - 1])
        heading = next((name for start, name in reversed(headings) if start < at), "")
        if not found or found[-1].heading != heading:
            found.append(Scene(heading, []))
        found[-1].commands.extend(_commands(block.text))
    return found


def _commands(text: str) -> list[Command]:
    found: list[Command] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(Command(shlex.split(line[2:]), [], False))
        elif line == INTERRUPT:
            found[-1] = found[-1]._replace(stays=True)
        else:
            found[-1].lines.append(line)
    return found


def _as_in_a_terminal() -> None:
    """Make Ctrl-C end the program, even if the tests run in the background of a shell, which ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Running:
    """A started program, whose lines are read as they are printed."""

    def __init__(self, command: Command, directory: Path) -> None:
        python, *words = command.words
        assert python == "python", command.words
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
        self.command = command
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._process = subprocess.Popen(
            [sys.executable, *words],
            cwd=directory,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=_as_in_a_terminal,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        """Until it has printed so many lines, or has ended."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.lines) >= count or self._ended, TIMEOUT)
        assert came, f"{self.command.words}: {self.lines} is all that came"

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Return its exit code after it ended by itself; it is killed otherwise."""
        try:
            return self._process.wait(TIMEOUT)
        finally:
            self.kill()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


def perform(scene: Scene, directory: Path) -> None:
    """Run the commands of a scene. Raises AssertionError if their output differs from the page.

    Of a program that runs in several terminals at a time all lines are compared together: who prints which is up to the
    broker.
    """
    staying: list[Running] = []
    try:
        for command in scene.commands:
            running = Running(command, directory)
            if command.stays:
                staying.append(running)
                running.wait_for(1)
                if running.lines[:1] != command.lines[:1]:
                    running.kill()
                    _compare(running, running.lines, command.lines, {0})
                continue
            code = running.end()
            _compare(running, running.lines, command.lines, {code})
        for running in staying:
            mates = [other for other in staying if other.command.words == running.command.words]
            _wait_for_all(mates)
            for mate in mates:
                mate.interrupt()
            codes = [mate.end() for mate in mates]
            printed = sorted(line for mate in mates for line in mate.lines)
            expected = sorted(line for mate in mates for line in mate.command.lines)
            if len(mates) == 1:
                printed, expected = running.lines, running.command.lines
            _compare(running, printed, expected, set(codes))
    finally:
        for running in staying:
            running.kill()


def _compare(running: Running, printed: list[str], expected: list[str], codes: set[int]) -> None:
    assert printed == expected and codes == {0}, "\n".join(
        [f"{running.command.words} ended with {codes} and printed", *printed, "instead of", *expected]
    )


def _wait_for_all(mates: list[Running]) -> None:
    """Wait until they have printed the expected number of lines in total, or have ended."""
    expected = sum(len(mate.command.lines) for mate in mates)
    if len(mates) == 1:
        mates[0].wait_for(expected)
        return
    deadline = threading.Event()
    timer = threading.Timer(TIMEOUT, deadline.set)
    timer.start()
    try:
        while sum(len(mate.lines) for mate in mates) < expected and not deadline.wait(0.02):
            pass
    finally:
        timer.cancel()
    assert not deadline.is_set(), [mate.lines for mate in mates]

"""Fail a run of tests that leaves processes or files behind.

A run has a temporary directory of its own, whose name all processes that its tests start have in their environment or in
their arguments. Those that remain at the end are found by it. What pytest itself keeps, the files of the last runs, is
elsewhere.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.support.polling import wait_until

# Seconds in which processes that were asked to stop must end.
ENDED_WITHIN = 60.0
# The runs of pytest that tests start themselves belong to the outer one.
OUTER = "LEVERET_TEST_FILES"


class Leaks:
    """The check of one run, in the process that distributes the tests."""

    def __init__(self) -> None:
        self._outside = tempfile.gettempdir()
        self.directory = Path(tempfile.mkdtemp(prefix="run-"))
        # Servers that run as other users have their directories inside.
        self.directory.chmod(0o711)
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", self._outside)
        os.environ["TMPDIR"] = os.environ[OUTER] = tempfile.tempdir = str(self.directory)
        self.found: list[str] = []

    def processes(self) -> list[str]:
        """Return the ids and commands of the processes that tests started and that still run."""
        mark = str(self.directory).encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes()
                # Processes that have ended have no command.
                if int(entry.name) != os.getpid() and command and mark in (entry / "environ").read_bytes() + command:
                    text = command.replace(bytes(1), b" ").decode(errors="replace").strip()
                    found.append(f"process {entry.name}: {text}")
            except OSError:  # ended meanwhile, or of another user
                continue
        return found

    # After pytest-xdist has stopped its workers.
    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        try:
            wait_until(lambda: not self.processes(), within=ENDED_WITHIN)
        except AssertionError:
            self.found += self.processes()
        self.found += [f"{'directory' if path.is_dir() else 'file'} {path}" for path in sorted(self.directory.iterdir())]
        if self.found and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.found:
            terminalreporter.write_line(f"LEFT BEHIND {line}", red=True)

    def pytest_unconfigure(self) -> None:
        tempfile.tempdir = None
        shutil.rmtree(self.directory, ignore_errors=True)


def watch(config: pytest.Config) -> None:
    """Check the run that begins, unless this process is a part of one."""
    if OUTER not in os.environ and Path("/proc/self/environ").exists():
        config.pluginmanager.register(Leaks(), "leaks")

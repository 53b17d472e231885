"""Modules in the working directory that bear the names of others: no process of Leveret's runs them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from leveret import _isolation, sync
from tests.support.broker import basic_config
from tests.support.polling import wait_until

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 120
STREAM = {"x-queue-type": "stream"}


@dataclass
class Installation:
    """Ways to start `leveret`: from a checkout, or from an installed wheel."""

    command: list[str]
    path: str
    unprotected: frozenset[str]


def loaded_by_python(directory: Path) -> frozenset[str]:
    """The modules that Python itself has imported before the code of `python -m MODULE` runs, and the module."""
    (directory / "probe.py").write_text("import sys\nprint(*{name.partition('.')[0] for name in sys.modules})\n")
    done = subprocess.run(
        [sys.executable, "-m", "probe"], cwd=directory, capture_output=True, text=True, timeout=LIMIT, check=True
    )
    return frozenset({*done.stdout.split(), "leveret"})


def install_wheel(directory: Path) -> Path:
    """A pure wheel of this checkout, installed into a directory."""
    source = directory / "source"
    source.mkdir()
    for name in ("src", "tools"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "NOTICE", "hot_modules.txt"):
        shutil.copy(ROOT / name, source / name)
    done = subprocess.run(
        [sys.executable, "-c", "from setuptools.build_meta import build_wheel; build_wheel('dist')"],
        cwd=source,
        env={**os.environ, "CC": "/no/such/compiler", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = (source / "dist").glob("*-none-any.whl")
    site = directory / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # As pip writes it.
    (site / "bin").mkdir()
    (site / "bin" / "leveret").write_text("import re\nimport sys\nfrom leveret.cli import main\nsys.exit(main())\n")
    return site


@pytest.fixture(scope="module", params=["checkout", "wheel"])
def installation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    if request.param == "checkout":
        unprotected = loaded_by_python(tmp_path_factory.mktemp("probe"))
        return Installation([sys.executable, "-m", "leveret"], str(ROOT / "src"), unprotected)
    site = install_wheel(tmp_path_factory.mktemp("wheel"))
    return Installation([sys.executable, str(site / "bin" / "leveret")], str(site), frozenset())


class Planted:
    """A working directory with a module for every name that this Python could import."""

    def __init__(self, directory: Path, installation: Installation) -> None:
        self.directory = directory
        self.installation = installation
        self.traces = directory / "traces"
        directory.mkdir()
        for name in {*sys.stdlib_module_names, *packages_distributions(), "leveret"} - installation.unprotected:
            trace = f"{self.traces}-{name}"
            (directory / f"{name}.py").write_text(
                f"import os\nos.close(os.open({trace!r}, os.O_CREAT))\nraise SystemExit('planted')\n"
            )

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": self.installation.path, "LEVERET_PURE": "1", "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, *arguments: str, input: str = "", url: str = "") -> str:
        done = subprocess.run(
            [*self.installation.command, *arguments],
            cwd=self.directory,
            input=input,
            env={**self.environment(), "LEVERET_URL": url},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert done.returncode == 0, (arguments, done.stdout, done.stderr, self.executed())
        return done.stdout

    def executed(self) -> list[str]:
        """The planted modules that were run."""
        return sorted(path.name.partition("-")[2] for path in self.directory.glob("traces-*"))


@pytest.fixture
def planted(installation: Installation, tmp_path: Path) -> Planted:
    return Planted(tmp_path / "work", installation)


@pytest.fixture
def broker(planted: Planted, tmp_path: Path) -> Iterator[str]:
    """The URL of `leveret serve` in the directory of planted modules."""
    config, ready, output = tmp_path / "leveret.toml", tmp_path / "ready.json", tmp_path / "broker.log"
    config.write_text(basic_config())
    command = [
        *planted.installation.command,
        "serve",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--config",
        str(config),
        "--data-dir",
        str(tmp_path / "data"),
        "--ready-file",
        str(ready),
    ]
    with output.open("wb") as log:
        process = subprocess.Popen(
            command, cwd=planted.directory, env=planted.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        wait_until(lambda: ready.exists() or process.poll() is not None, "the broker's start")
        assert process.poll() is None, (output.read_text(), planted.executed())
        yield f"amqp://guest:guest@127.0.0.1:{json.loads(ready.read_text())['port']}/"
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0, output.read_text()
    finally:
        process.kill()
        process.wait()
        assert planted.executed() == []


def test_no_process_runs_them(planted: Planted, broker: str, tmp_path: Path) -> None:
    """The broker, its sealer process, the load generator's children and commands."""
    with sync.connect(broker) as connection, connection.channel() as channel:
        channel.declare_queue("history", durable=True, arguments=STREAM)
        channel.declare_queue("work", durable=True)
        for number in range(5):
            channel.publish(b"%d" % number, "history")
    directory = str(tmp_path / "data")
    assert "sealed stream 'history' up to offset 5" in planted.run("streams", "seal", "history", "--data-dir", directory)
    assert "work" in planted.run("queues", "--data-dir", directory)
    report = planted.run("bench", "--json", "-", "--quiet", "--messages", "20", "--processes", "2", url=broker)
    assert json.loads(report)["consumed"] == 20


def test_the_planted_modules_would_run(planted: Planted) -> None:
    """Shows that the modules of the other test would run."""
    # A file, because Python 3.13 itself imports a module before it runs the code of `-c`.
    (planted.directory / "program.py").write_text("import wave\n")
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=planted.directory,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 1
    assert planted.executed() == ["wave"]


def test_a_program_that_embeds_a_broker_keeps_its_search_path(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("VALUE = 7\n")
    done = subprocess.run(
        [sys.executable, "-c", "import leveret, leveret.node.embedded, own; print(own.VALUE)"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("7\n", "")


def test_the_search_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    other = str(tmp_path / "other")
    monkeypatch.setattr(sys, "path", ["", ".", str(tmp_path), other, _isolation.ROOT])
    monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}other")
    assert _isolation.search_path() == [other, _isolation.ROOT]
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert _isolation.search_path() == [str(tmp_path), other, _isolation.ROOT]


def test_the_package_in_the_working_directory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(_isolation.ROOT)
    monkeypatch.setattr(sys, "path", ["", _isolation.ROOT])
    assert _isolation.search_path() == [_isolation.ROOT]


@pytest.mark.parametrize(
    ("arguments", "original", "expected"),
    [
        (["-m", "serve"], ["python", "-m", "leveret", "serve"], True),
        (["-m"], ["python", "-X", "dev", "-m", "leveret"], True),
        (["-m"], ["python", "-mleveret"], True),
        (["-m"], ["python", "-Bm", "leveret.cli.main"], True),
        (["-m", "leveret"], ["python", "-m", "application", "leveret"], False),
        (["/usr/bin/leveret", "-m"], ["python", "/usr/bin/leveret", "-m"], False),
        ([], ["python"], False),
    ],
)
def test_how_a_process_was_started(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], original: list[str], expected: bool
) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setattr(sys, "orig_argv", original)
    assert _isolation.is_started_as_module() is expected

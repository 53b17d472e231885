"""The wheels of `make wheels`, each installed with the dependencies of the default install only, run a broker."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from leveret import sync
from tests.support.broker import ROOT, basic_config, free_port
from tests.support.installs import LIMIT, copy_checkout, dependencies, install, run
from tests.support.polling import wait_until
from tools import build_wheels

# Bytes of leveret[management]: to download, and on disk without bytecode.
MAX_DOWNLOAD = 25_000_000
MAX_UNPACKED = 42_000_000
SHOW = "import leveret; print(leveret.build_info().compiled, leveret.__file__)"


def is_compiled() -> bool:
    """Whether the checkout is compiled, so that a wheel needs no compilation of several minutes."""
    return run(sys.executable, "-c", SHOW, cwd=ROOT, PYTHONPATH=str(ROOT / "src")).startswith("True")


@pytest.fixture(scope="module", params=["compiled", "pure"])
def wheel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of a copy of this checkout, as `make wheels` writes it to `dist/`."""
    source = tmp_path_factory.mktemp("source")
    dist = tmp_path_factory.mktemp("dist")
    copy_checkout(source)
    if request.param == "pure":
        build_wheels.build_pure(source, dist)
    else:
        if not is_compiled():
            pytest.skip("the checkout is not compiled")
        if importlib.util.find_spec("auditwheel") is None:
            pytest.skip("auditwheel is not installed; run make setup")
        shutil.copytree(
            ROOT / "build" / "compiled", source / "build" / "compiled", ignore=shutil.ignore_patterns(".work-*")
        )
        run(sys.executable, "-c", build_wheels.BUILD_WHEEL, cwd=source)
        [built] = (source / "dist").glob("*.whl")
        build_wheels.repair(Path(sys.executable), built, dist)
    [path] = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and the dependencies of the default install, which are those of the tests."""
    directory = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", directory, cwd=directory)
    install(directory, wheel)
    return directory


@pytest.mark.slow
def test_the_tag_names_the_platform_of_compiled_modules(wheel: Path, environment: Path) -> None:
    is_pure = wheel.name.endswith("-py3-none-any.whl")
    if not is_pure:
        version = f"cp{sys.version_info.major}{sys.version_info.minor}"
        assert re.search(rf"-{version}-{version}-(many|musl)linux[\w.]+\.whl$", wheel.name)
    _, file = run(environment / "bin" / "python", "-c", SHOW, cwd=environment).split()
    assert Path(file).is_relative_to(environment)
    # As `make wheels` tries what it has built.
    build_wheels.check(environment / "bin" / "python", is_compiled=not is_pure)
    with pytest.raises(build_wheels.BuildFailed, match=f"runs {'plain files' if is_pure else 'compiled modules'}"):
        build_wheels.check(environment / "bin" / "python", is_compiled=is_pure)


@pytest.mark.slow
def test_the_install_is_small(wheel: Path) -> None:
    """The default install contains neither Arrow nor an HTTP server, and the extra `management` adds little."""
    assert len(dependencies(wheel)) < len(dependencies(wheel, "management"))
    assert "pyarrow" not in dependencies(wheel, "management")
    # No more than the wheel and the unpacked libraries.
    files = [file for found in dependencies(wheel, "management").values() for file in found.files or ()]
    libraries = sum(file.size or 0 for file in files)
    assert wheel.stat().st_size + libraries < MAX_DOWNLOAD
    with zipfile.ZipFile(wheel) as archive:
        assert sum(file.file_size for file in archive.infolist()) + libraries < MAX_UNPACKED


@pytest.mark.slow
def test_an_installed_wheel_runs_a_broker(environment: Path, tmp_path: Path) -> None:
    config, ready, output = tmp_path / "leveret.toml", tmp_path / "ready.json", tmp_path / "broker.log"
    config.write_text(f"{basic_config()}\n[management]\nport = {free_port()}\n")
    command: list[str | Path] = [
        environment / "bin" / "leveret",
        "serve",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--config",
        config,
        "--data-dir",
        tmp_path / "data",
        "--ready-file",
        ready,
    ]
    with output.open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": "", "LEVERET_PURE": "", "LEVERET_MANAGEMENT__ENABLED": "true"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(lambda: ready.exists() or process.poll() is not None, "the broker's start")
        assert process.poll() is None, output.read_text()
        port = json.loads(ready.read_text())["port"]
        with sync.connect(f"amqp://guest:guest@127.0.0.1:{port}/") as connection, connection.channel() as channel:
            channel.declare_queue("work", durable=True)
            channel.publish(b"installed", "work")
            message = channel.get("work", no_ack=True)
            assert message is not None and message.body == b"installed"
            for stream in ("first", "second"):
                channel.declare_queue(stream, durable=True, arguments={"x-queue-type": "stream"})
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0, output.read_text()
        # The broker names each missing extra once, with the command that installs it.
        for missing in ("pip install 'leveret[management]'", "pip install 'leveret[segments]'"):
            assert output.read_text().count(missing) == 1, output.read_text()
    finally:
        process.kill()
        process.wait()


def test_wheels_need_a_supported_interpreter(tmp_path: Path) -> None:
    """A release has no wheel of an unsupported version, and none is left out silently."""
    other = tmp_path / "python2.7"
    other.write_text("#!/bin/sh\necho 2.7\n")
    other.chmod(0o755)
    supported = ", ".join(build_wheels.supported_versions())
    with pytest.raises(build_wheels.BuildFailed, match=rf"python2\.7 is Python 2\.7; expected CPython {supported}$"):
        build_wheels.wanted_interpreters([other])
    with pytest.raises(build_wheels.BuildFailed, match="missing does not run"):
        build_wheels.wanted_interpreters([tmp_path / "missing"])


def test_missing_interpreters_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An interpreter of pyenv is found, too; a shim in PATH that does not run is not taken."""
    shims, pyenv = tmp_path / "shims", tmp_path / "pyenv"
    for path, text in (
        (shims / "python3.12", "exit 127"),
        (pyenv / "versions/3.12.9/bin/python3.12", "echo 3.12"),
        (pyenv / "versions/3.12.10/bin/python3.12", "echo 3.12"),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(shims))
    monkeypatch.setenv("PYENV_ROOT", str(pyenv))
    assert build_wheels.wanted_interpreters([]) == [pyenv / "versions/3.12.10/bin/python3.12"]
    assert "no wheel for Python 3.13: python3.13 is neither in PATH nor in pyenv" in capsys.readouterr().err

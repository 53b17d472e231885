"""The wheels of `make build`, each installed in its own environment, run a broker."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from leveret import sync
from tests.support.broker import basic_config
from tests.support.polling import wait_until

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 280
SHOW = "import leveret; print(leveret.build_info().compiled, leveret.__file__)"
CHECKOUT = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "NOTICE", "hot_modules.txt")


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Return the output of a program that does not find the checkout."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": "", "LEVERET_PURE": "", **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def is_compiled() -> bool:
    """Whether the checkout is compiled, so that a wheel needs no compilation of several minutes."""
    return run(sys.executable, "-c", SHOW, cwd=ROOT, PYTHONPATH=str(ROOT / "src")).startswith("True")


@pytest.fixture(scope="module", params=["compiled", "pure"])
def wheel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of a copy of this checkout."""
    source = tmp_path_factory.mktemp("source")
    for name in ("src", "tools"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in CHECKOUT:
        shutil.copy(ROOT / name, source / name)
    if request.param == "compiled":
        if not is_compiled():
            pytest.skip("the checkout is not compiled")
        shutil.copytree(
            ROOT / "build" / "compiled", source / "build" / "compiled", ignore=shutil.ignore_patterns(".work-*")
        )
    run(
        sys.executable,
        "-c",
        "from setuptools.build_meta import build_wheel; build_wheel('dist')",
        cwd=source,
        LEVERET_PURE="1" if request.param == "pure" else "",
    )
    [path] = (source / "dist").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel; its dependencies are those that the tests run with."""
    directory = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", directory, cwd=directory)
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        directory / "bin" / "python",
        "install",
        "--no-index",
        "--no-deps",
        wheel,
        cwd=directory,
    )
    [site] = (directory / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("site-packages")))
    return directory


@pytest.mark.slow
def test_the_tag_names_the_platform_of_compiled_modules(wheel: Path, environment: Path) -> None:
    is_pure = wheel.name.endswith("-py3-none-any.whl")
    if not is_pure:
        version = f"cp{sys.version_info.major}{sys.version_info.minor}"
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        assert wheel.name.endswith(f"-{version}-{version}-{platform}.whl")
    compiled, file = run(environment / "bin" / "python", "-c", SHOW, cwd=environment).split()
    assert compiled == str(not is_pure)
    assert Path(file).is_relative_to(environment)


@pytest.mark.slow
def test_an_installed_wheel_runs_a_broker(environment: Path, tmp_path: Path) -> None:
    config, ready, output = tmp_path / "leveret.toml", tmp_path / "ready.json", tmp_path / "broker.log"
    config.write_text(basic_config())
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
            env={**os.environ, "PYTHONPATH": "", "LEVERET_PURE": ""},
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
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0, output.read_text()
    finally:
        process.kill()
        process.wait()

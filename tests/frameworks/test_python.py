"""The examples of Python frameworks: each directory has its own tests, which run with the packages of build/frameworks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.broker import ROOT, Broker

DIRECTORY = ROOT / "examples" / "frameworks"
EXAMPLES = sorted({path.parent.name for path in DIRECTORY.glob("*/test_*.py")})
PYTHON = ROOT / "build" / "frameworks" / "bin" / "python"
# Examples that publish delayed messages.
NEEDS_PLUGIN = {"taskiq"}

examples = pytest.mark.parametrize("example", EXAMPLES)


def run(example: str, tmp_path: Path, plugin: str, **variables: str) -> None:
    """Run the tests of an example with one of the plugins that have the fixtures for a broker."""
    if not PYTHON.exists():
        pytest.skip("the frameworks are not installed: run make frameworks")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # A checkout that a package was built in (`pip install .`) has an entry point for the plugin, too.
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    ran = subprocess.run(
        [PYTHON, "-m", "pytest", "-p", plugin, "--basetemp", str(tmp_path / "tests"), str(DIRECTORY / example)],
        cwd=DIRECTORY,
        env=environment | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"} | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout
    assert " skipped" not in ran.stdout


@examples
def test_example(example: str, tmp_path: Path) -> None:
    """With the fixtures of Leveret's pytest plugin, as its users run it."""
    run(example, tmp_path, "leveret.pytest_plugin")


@pytest.mark.slow
@pytest.mark.usefixtures("everything")
@examples
def test_example_with_a_broker_process(example: str, tmp_path: Path, broker: Broker) -> None:
    if example in NEEDS_PLUGIN and broker.kind == "rabbitmq":
        pytest.skip("RabbitMQ has the exchange type x-delayed-message only with a plugin")
    run(
        example,
        tmp_path,
        "tests.frameworks.external",
        LEVERET_EXAMPLE_URL=broker.url(),
        LEVERET_EXAMPLE_VHOST_URL=broker.url(vhost="interop"),
    )

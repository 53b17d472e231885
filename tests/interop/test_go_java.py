"""RabbitMQ's clients for Go and Java: a small program each, built once under build/ and run against the broker."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.broker import ROOT, Broker

HERE = Path(__file__).parent


def build_directory(language: str, *sources: Path) -> Path:
    """A directory under build/ that is new when a source is."""
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    directory = ROOT / "build" / "interop" / f"{language}-{digest}"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def prepare(command: list[str], what: str, **options: object) -> None:
    """Run a step that needs a package registry; where that fails, the test is skipped."""
    ran = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, **options)  # type: ignore[call-overload]
    if ran.returncode:
        pytest.skip(f"{what}: {(ran.stderr or ran.stdout)[-1000:]}")


def run(command: list[str], broker: Broker) -> None:
    ran = subprocess.run(
        command, env=os.environ | {"LEVERET_URL": broker.url(vhost="/")},
        capture_output=True, text=True, timeout=110, check=False)  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    passed = int(ran.stdout.splitlines()[-1].split()[0])
    assert passed == ran.stdout.count("ok "), ran.stdout
    assert passed >= 13


@pytest.mark.timeout(600)
def test_go(broker: Broker) -> None:
    go = shutil.which("go") or "/usr/local/go/bin/go"
    if not Path(go).exists():
        pytest.skip("Go is not installed")
    directory = build_directory("go", *(HERE / "go" / name for name in ("go.mod", "go.sum", "main.go")))
    program = directory / "interop"
    if not program.exists():
        environment = os.environ | {"GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
        prepare([go, "build", "-o", str(program), "."], "the Go client cannot be built", cwd=HERE / "go", env=environment)
    run([str(program)], broker)


@pytest.mark.timeout(600)
def test_java(broker: Broker) -> None:
    if any(shutil.which(tool) is None for tool in ("java", "javac", "mvn")):
        pytest.skip("Java with Maven is not installed")
    libraries = build_directory("java", HERE / "java" / "pom.xml")
    if not list(libraries.glob("amqp-client*.jar")):
        command = ["mvn", "-q", "-B", "-f", str(HERE / "java" / "pom.xml"), "dependency:copy-dependencies",
                   f"-DoutputDirectory={libraries}", f"-DbuildDirectory={libraries}"]  # fmt: skip
        prepare(command, "Maven cannot fetch the Java client")
    classes = build_directory("java-classes", HERE / "java" / "pom.xml", HERE / "java" / "Interop.java")
    path = f"{libraries}/*"
    if not (classes / "Interop.class").exists():
        source = str(HERE / "java" / "Interop.java")
        ran = subprocess.run(
            ["javac", "-cp", path, "-d", str(classes), source], capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
    run(["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", f"{path}:{classes}", "Interop"], broker)

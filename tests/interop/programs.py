"""Programs with clients in other languages: built under build/, and rebuilt when a source changes."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.broker import ROOT, Broker
from tests.support.locks import locked


def build_directory(language: str, *sources: Path) -> Path:
    """Return a directory under build/ whose name depends on the sources."""
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    directory = ROOT / "build" / "interop" / f"{language}-{digest}"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def prepare(
    command: list[str],
    what: str,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 400,
) -> None:
    """Run a step that needs a package registry; skip the test if that fails."""
    ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, cwd=cwd, env=env)
    if ran.returncode:
        pytest.skip(f"{what}: {(ran.stderr or ran.stdout)[-1000:]}")


def java(directory: Path, program: str, library: str, libraries_of: str = "pom.xml") -> list[str]:
    """Return the command that runs a Java program with the libraries of a POM; `library` is one of them.

    Its other sources are in the same directory.
    """
    if any(shutil.which(tool) is None for tool in ("java", "javac", "mvn")):
        pytest.skip("Java with Maven is not installed")
    pom = directory / libraries_of
    source = directory / f"{program}.java"
    libraries = build_directory("java", pom)
    # One Maven at a time, because all share its local repository.
    with locked(libraries.parent):
        if not list(libraries.glob(f"{library}*.jar")):
            prepare(
                [
                    "mvn",
                    "-q",
                    "-B",
                    "-f",
                    str(pom),
                    "dependency:copy-dependencies",
                    f"-DoutputDirectory={libraries}",
                    f"-DbuildDirectory={libraries}",
                ],
                "Maven cannot fetch the Java client",
            )
    classes = build_directory("java-classes", pom, *sorted(directory.glob("*.java")))
    with locked(classes):
        if not (classes / f"{program}.class").exists():
            ran = subprocess.run(
                ["javac", "-cp", f"{libraries}/*", "-sourcepath", str(directory), "-d", str(classes), str(source)],
                capture_output=True,
                text=True,
                check=False,
            )
            assert ran.returncode == 0, ran.stderr
    return ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", f"{libraries}/*:{classes}", program]


def go(directory: Path, program: str) -> list[str]:
    """Return the command that runs the Go program in a directory, which has go.mod, go.sum and main.go."""
    compiler = shutil.which("go") or "/usr/local/go/bin/go"
    if not Path(compiler).exists():
        pytest.skip("Go is not installed")
    built = build_directory("go", *(directory / name for name in ("go.mod", "go.sum", "main.go"))) / program
    with locked(built.parent):
        if not built.exists():
            environment = os.environ | {"GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
            command = [compiler, "build", "-o", str(built), "."]
            prepare(command, "the Go client cannot be built", cwd=directory, env=environment)
    return [str(built)]


def run(command: list[str], broker: Broker, least: int, timeout: float = 400) -> None:
    """Run a program that prints `ok ...` for each successful check, and their number at the end."""
    ran = subprocess.run(
        command,
        env=os.environ | {"LEVERET_URL": broker.url(vhost="/")},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    passed = int(ran.stdout.splitlines()[-1].split()[0])
    assert passed == ran.stdout.count("ok "), ran.stdout
    assert passed >= least

"""Programs in Java for the benchmarks: Maven downloads their libraries, and javac compiles them, at first use."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

from bench.generator import OUTPUT

_ARTIFACT = re.compile(r"(?:[Cc]ould not find artifact|[Cc]ould not transfer artifact|[Ff]ailure to find) (\S+)")


class Unavailable(Exception):
    """A program cannot be built on this machine. The message says what is missing."""


def directory(title: str, pom: Path, *sources: Path) -> Path:
    """Return the directory of a program, which exists once it is built."""
    digest = hashlib.blake2b(b"".join(path.read_bytes() for path in (pom, *sources)), digest_size=6).hexdigest()
    return OUTPUT / f"{title.lower().replace(' ', '-')}-{digest}"


def build(title: str, pom: Path, *sources: Path) -> Path:
    """Return the directory with the libraries of a POM and the classes of the sources.

    Raises:
        Unavailable: Java or Maven is not installed, or Maven cannot download an artifact.
    """
    missing = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
    if missing:
        raise Unavailable(f"{title} needs {', '.join(missing)} (Debian: apt install default-jdk-headless maven)")
    target = directory(title, pom, *sources)
    if target.exists():
        return target
    print(f"Downloading {title} (first use only)", file=sys.stderr)
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    directories = (f"-DoutputDirectory={partial}", f"-DbuildDirectory={partial}")
    _run(title, "mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", *directories)
    if sources:
        _run(title, "javac", "-cp", f"{partial}/*", "-d", str(partial), *map(str, sources))
    partial.rename(target)
    return target


def _run(title: str, *command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        output = done.stdout + done.stderr
        artifacts = sorted(set(_ARTIFACT.findall(output)))
        reason = f"Maven cannot download {', '.join(artifacts)}" if artifacts else output.strip()[-1000:]
        raise Unavailable(f"{title} is unavailable: {reason}")

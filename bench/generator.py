"""The load generator in C (`bench/loadgen/`) and the slow disk (`bench/slow_sync.c`), compiled at first use."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
OUTPUT = BENCH.parent / "build" / "bench"


class GeneratorFailed(Exception):
    """The load generator failed. The message is that of the generator."""


def compile_c(name: str, sources: list[Path], *options: str) -> Path:
    """Compile C sources into `build/bench/NAME-HASH` unless that file exists."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("the benchmark needs a C compiler for its load generator (Debian: apt install gcc libc6-dev)")
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(sources):
        digest.update(path.read_bytes())
    target = OUTPUT / f"{name}-{digest.hexdigest()}"
    if not target.exists():
        OUTPUT.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        files = [str(path) for path in sources if path.suffix == ".c"]
        subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-o", str(partial), *files, *options], check=True)
        partial.rename(target)
    return target


def loadgen() -> Path:
    return compile_c("loadgen", [*(BENCH / "loadgen").glob("*.[ch]")])


def slow_sync() -> Path:
    return compile_c("slow_sync", [BENCH / "slow_sync.c"], "-shared", "-fPIC", "-ldl")


class Load:
    """A running load generator. `result` waits for its end."""

    def __init__(self, port: int, mode: str, *options: str, watch: int = 0) -> None:
        command = [str(loadgen()), mode, "--port", str(port), *options]
        if watch:
            command += ["--watch", str(watch)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def result(self, timeout: float = 600) -> dict[str, Any]:
        """Return its JSON object. Raises GeneratorFailed if there is none."""
        try:
            output, errors = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise GeneratorFailed(f"no result within {timeout:.0f} s") from None
        if self.process.returncode != 0:
            raise GeneratorFailed(errors.strip() or f"exit code {self.process.returncode}")
        result: dict[str, Any] = json.loads(output)
        return result

    def stop(self) -> dict[str, Any]:
        """End a load early. Returns its measurements so far."""
        self.process.terminate()
        return self.result(60)

    def line(self) -> str:
        """Return the next line of output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()


def floor(rate: int, *options: str) -> dict[str, Any]:
    """Measure the machine's own latency at a rate per second: that of an echo between two processes, from its due time."""
    return run(0, "floor", "--rate", str(rate), *options)


def run(port: int, mode: str, *options: str, watch: int = 0, timeout: float = 600) -> dict[str, Any]:
    return Load(port, mode, *options, watch=watch).result(timeout)

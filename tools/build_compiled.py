"""Compile the hot modules with mypyc: run `python tools/build_compiled.py` in a checkout; setup.py calls `build`.

`hot_modules.txt` lists the modules to compile; `src/leveret/_compiled.py` loads the result. The compilation works on a
copy of the package, so that a file edited meanwhile cannot end up under the wrong hash.

C compiler options come from the environment as usual (`CFLAGS=-march=native` for a build that stays on its machine).
`LEVERET_OPTIMIZATION` is the compiler's level of optimization, 3 by default: 1 takes two thirds of the time.
"""

from __future__ import annotations

import argparse
import ast
import fcntl
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "leveret"
# mypyc sets -Werror, but warnings of other compilers must not fail the build. Functions that the binary does not export are
# called directly, and need neither a name nor an entry for the dynamic linker.
COMPILER_OPTIONS = ("-Wno-error", "-fvisibility=hidden")
# All binaries but one have a few hundred bytes of code. Segments on pages of their own would triple their size.
LINKER_OPTIONS = ("-Wl,-z,noseparate-code",) if sys.platform == "linux" else ()
# Number of older builds to keep, because running processes may still load modules from them.
KEEP = 3


def load_runtime(package: Path) -> ModuleType:
    """Import `leveret._compiled` by its path. Importing the package would install the existing build."""
    spec = importlib.util.spec_from_file_location("_leveret_compiled", package / "_compiled.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def module_path(package: Path, module: str) -> Path | None:
    """Return the file of a Leveret module by its full name, or None if it does not exist."""
    base = package.parent.joinpath(*module.split("."))
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def hot_modules(package: Path, listing: str) -> list[str]:
    """Return the sorted full names of existing modules that match a listing such as `hot_modules.txt`."""
    existing = {
        ".".join(path.relative_to(package.parent).with_suffix("").parts)
        for path in package.rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py", "_build.py", "_compiled.py", "_isolation.py")
    }
    chosen: set[str] = set()
    for line in listing.splitlines():
        pattern = line.split("#")[0].strip()
        if not pattern:
            continue
        expression = re.compile(re.escape(f"{PACKAGE}.{pattern.lstrip('!')}").replace(r"\*", r"[^.]*"))
        matching = {name for name in existing if expression.fullmatch(name)}
        chosen = chosen - matching if pattern.startswith("!") else chosen | matching
    return sorted(chosen)


def imports_of(package: Path, module: str, file: Path) -> set[str]:
    """Return the full names of the Leveret modules that a file imports anywhere."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parts = parts[: len(parts) - node.level + (file.name == "__init__.py")]
                base = ".".join([*parts, base] if base else parts)
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return {name for name in found if name.startswith(f"{PACKAGE}.") and module_path(package, name) is not None}


def sources_of(package: Path, modules: Iterable[str]) -> list[str]:
    """Return the paths, relative to the package, of modules and of all Leveret modules that they import transitively."""
    todo = list(modules)
    seen: dict[str, Path] = {}
    while todo:
        module = todo.pop()
        if module in seen:
            continue
        file = module_path(package, module)
        assert file is not None, module
        seen[module] = file
        todo.extend(imports_of(package, module, file))
    return sorted(file.relative_to(package).as_posix() for file in seen.values())


def obstacle() -> str:
    """Return the reason why this machine cannot compile, or ""."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(os.environ.get("CC", compiler).split()[0]) is None:
        return "there is no C compiler"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python's header files are missing (Debian: python3-dev)"
    for needed in ("mypy", "setuptools"):
        if importlib.util.find_spec(needed) is None:
            return f"{needed} is not installed"
    return ""


def identity(modules: list[str]) -> str:
    """Return the part of a build's identity that is not in the hash of the sources: the toolchain and the modules."""
    return (
        json.dumps(
            {
                "mypy": importlib.metadata.version("mypy"),
                "python": sys.version,
                "flags": os.environ.get("CFLAGS", ""),
                "options": [*COMPILER_OPTIONS, *LINKER_OPTIONS],
                "compiler": os.environ.get("CC", ""),
                "modules": modules,
            },
            indent=1,
        )
        + "\n"
    )


def compile_here(modules: list[str]) -> None:
    """Compile modules of the package in ./src into ./lib. Runs in a separate process in the work directory."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    class ParallelBuild(build_ext):
        """Build command that compiles the sources of each extension in parallel, not only the extensions."""

        def build_extensions(self) -> None:
            one_by_one = self.compiler.compile

            def compile_all(sources: list[str], **options: Any) -> list[str]:
                with ThreadPoolExecutor(self.parallel) as threads:
                    return [
                        file
                        for files in threads.map(lambda source: one_by_one([source], **options), sources)
                        for file in files
                    ]

            self.compiler.compile = compile_all
            super().build_extensions()

    package = Path("src", PACKAGE)
    files = [str(module_path(package, module)) for module in modules]
    extensions = mypycify(
        ["--config-file", "mypy.ini", *files],
        opt_level=os.environ.get("LEVERET_OPTIMIZATION", "3"),
        debug_level="0",
        multi_file=True,
        target_dir="c",
        group_name=f"{PACKAGE}_hot",
    )
    for extension in extensions:
        extension.extra_compile_args += COMPILER_OPTIONS
        extension.extra_link_args += LINKER_OPTIONS
    command = ParallelBuild(Distribution({"name": PACKAGE, "ext_modules": extensions}))
    command.build_lib = "lib"
    command.build_temp = "o"
    command.parallel = os.cpu_count()
    command.finalize_options()
    command.run()


def errors_in(output: str) -> str:
    """Return the error lines of the output of mypyc or the C compiler, or its last lines."""
    lines = output.splitlines()
    return "\n".join([line for line in lines if "error: " in line][:20] or lines[-20:])


def write_atomically(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(name, 0o644)
    os.replace(name, path)


def prune(output: Path, keep: str) -> None:
    """Delete old builds, except the current one and the last few."""
    builds = [path.parent for path in output.glob("*/complete") if path.parent.name != keep]
    builds.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in builds[KEEP:]:
        shutil.rmtree(path, ignore_errors=True)


def build(package: Path, output: Path, listing: str) -> str:
    """Compile the listed modules of a package into `output`, unless the build exists, and return the source hash.

    Raises:
        RuntimeError: The compilation failed. The message contains the compiler's errors.
    """
    runtime = load_runtime(package)
    output.mkdir(parents=True, exist_ok=True)
    with open(output / "lock", "w") as lock, tempfile.TemporaryDirectory(dir=output, prefix=".work-") as work:
        fcntl.flock(lock, fcntl.LOCK_EX)
        copy = Path(work, "src", PACKAGE)
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__", "_native", "*.so"))
        modules = hot_modules(copy, listing)
        if not modules:
            raise RuntimeError("hot_modules.txt lists no existing module")
        sources = sources_of(copy, modules)
        current = str(runtime.hash_sources(str(copy), sources))
        target = output / current
        marker = target / "complete"
        if not marker.is_file() or marker.read_text(encoding="utf-8") != identity(modules):
            print(f"Compiling {len(modules)} hot modules; this takes a few minutes", flush=True)
            Path(work, "mypy.ini").write_text(
                "[mypy]\nmypy_path = src\nignore_missing_imports = True\nfollow_imports = silent\n", encoding="utf-8"
            )
            worker = subprocess.run(
                [sys.executable, str(Path(__file__).resolve()), "--worker", *modules],
                cwd=work,
                # Without PYTHONPATH, in which mypy would find, and check, another checkout of the package.
                env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            if worker.returncode != 0:
                raise RuntimeError(errors_in(worker.stdout))
            built = Path(work, "lib")
            (built / "complete").write_text(identity(modules), encoding="utf-8")
            shutil.rmtree(target, ignore_errors=True)
            built.rename(target)
        write_atomically(output / runtime.index_name(), " ".join(modules) + "\n" + " ".join(sources) + "\n")
        prune(output, current)
    return current


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile the hot modules of this checkout with mypyc.")
    parser.add_argument("--require", action="store_true", help="exit with 1 if the compilation fails")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        compile_here(options.worker)
        return 0
    why = obstacle()
    failed = False
    if not why:
        began = time.monotonic()
        try:
            current = build(
                ROOT / "src" / PACKAGE, ROOT / "build" / "compiled", (ROOT / "hot_modules.txt").read_text(encoding="utf-8")
            )
        except RuntimeError as error:
            why = f"the compilation failed:\n{error}"
            failed = True
        else:
            print(f"Hot modules compiled: {current} ({time.monotonic() - began:.1f} s)")
            return 0
    print(f"Hot modules run as plain Python: {why}", file=sys.stderr)
    return 1 if failed and options.require else 0


if __name__ == "__main__":
    sys.exit(main())

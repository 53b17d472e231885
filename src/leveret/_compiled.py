"""Finds the compiled form of the hot modules, and refuses one that does not belong to the sources beside it.

`tools/build_compiled.py` compiles the modules that `hot_modules.txt` lists into a directory named after a hash of their
sources and of every module of ours that they import (mypyc copies constants and class layouts across modules). An
index file for each Python ABI says which sources went into the hash. `install` reads the index, hashes those files as
they are now, and puts a finder before the ordinary one only if the directory of that very hash exists: an edited source
therefore runs as plain Python until it is compiled again, and a stale binary is never loaded.

Binaries live in `build/compiled/` of a checkout, or in `leveret/_native/` of an installed wheel.
`LEVERET_PURE=1` in the environment selects the plain files.
"""

from __future__ import annotations

import os
import sys
from hashlib import blake2b
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import ModuleType

SUFFIX = EXTENSION_SUFFIXES[0]
PACKAGE = os.path.dirname(os.path.abspath(__file__))
# The module that holds the code of the whole group; the others are shims that ask it for theirs.
GROUP = "leveret_hot"


class BuildInfo(NamedTuple):
    """Which form of the hot modules this process runs.

    compiled  whether the compiled modules are in use
    reason    why, in words
    hash      of the sources that were compiled, or ""
    modules   how many modules are compiled
    """

    compiled: bool
    reason: str
    hash: str
    modules: int

    def __str__(self) -> str:
        return f"compiled, {self.modules} modules" if self.compiled else f"pure Python ({self.reason})"


def index_name() -> str:
    """The name of the index file for this Python: `index.cpython-311-x86_64-linux-gnu`."""
    return "index" + SUFFIX[: SUFFIX.rindex(".")]


def hash_sources(package: str, paths: Iterable[str]) -> str:
    """A hash over the names and contents of source files, given relative to the package's directory.

    Raises OSError where one of them cannot be read.
    """
    digest = blake2b(SUFFIX.encode(), digest_size=12)
    for path in paths:
        with open(f"{package}/{path}", "rb", buffering=0) as file:
            content = file.read()
        digest.update(b"%s\0%d\0" % (path.encode(), len(content)))
        digest.update(content)
    return digest.hexdigest()


def directories(package: str) -> list[str]:
    """Where compiled modules may be for a package in this directory, in order of preference."""
    found = [os.path.join(package, "_native")]
    source, name = os.path.split(os.path.dirname(package))
    if name == "src":
        found.append(os.path.join(source, "build", "compiled"))
    return found


def find(package: str) -> tuple[str, list[str], str]:
    """The directory of the binaries that belong to the present sources, their modules, and a reason if there is none.

    The directory is "" where none does.
    """
    reason = "not compiled"
    for directory in directories(package):
        try:
            with open(os.path.join(directory, index_name()), encoding="utf-8") as file:
                lines = file.read().split("\n")
        except OSError:
            continue
        # First line: the modules. Second: the sources.
        try:
            current = hash_sources(package, lines[1].split())
        except (OSError, IndexError):
            reason = "sources were moved since they were compiled"
            continue
        binaries = os.path.join(directory, current)
        if os.path.isfile(os.path.join(binaries, "complete")):
            return binaries, lines[0].split(), ""
        reason = "sources were edited since they were compiled"
    return "", [], reason


class CompiledFinder:
    """A meta path finder for the modules of one build."""

    def __init__(self, directory: str, modules: Iterable[str]) -> None:
        self.paths = {f"{GROUP}__mypyc": os.path.join(directory, f"{GROUP}__mypyc{SUFFIX}")}
        for module in modules:
            self.paths[module] = os.path.join(directory, *module.split(".")) + SUFFIX

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self.paths.get(fullname)
        if file is None:
            return None
        return spec_from_file_location(fullname, file, loader=ExtensionFileLoader(fullname, file))


def install() -> BuildInfo:
    """Serve the compiled modules from now on if there are current ones. Called once, by `import leveret`."""
    if os.environ.get("LEVERET_PURE", "0") not in ("", "0"):
        return BuildInfo(False, "LEVERET_PURE is set", "", 0)
    directory, modules, reason = find(PACKAGE)
    if not directory:
        return BuildInfo(False, reason, "", 0)
    sys.meta_path.insert(0, CompiledFinder(directory, modules))
    return BuildInfo(True, "", os.path.basename(directory), len(modules))

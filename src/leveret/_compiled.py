"""Import of the compiled hot modules, if they match their sources.

`tools/build_compiled.py` compiles the modules listed in `hot_modules.txt` into a directory named after a hash of their
sources and of every Leveret module that they import, because mypyc copies constants and class layouts across modules. An
index file per Python ABI lists the hashed sources. `install` hashes the current sources, and installs a finder only if a
directory with that hash exists. An edited source therefore runs as plain Python until the next compilation, and a stale
binary is never loaded.

Binaries are in `build/compiled/` of a checkout, or in `leveret/_native/` of an installed wheel. The environment variable
`LEVERET_PURE=1` selects the plain files.
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
# The module with the code of the whole group; the other modules are shims that load their code from it.
GROUP = "leveret_hot"


class BuildInfo(NamedTuple):
    """Form of the hot modules that this process runs.

    Attributes:
        compiled: Whether the compiled modules are in use.
        reason: Why they are not, or "".
        hash: Hash of the compiled sources, or "".
        modules: Number of compiled modules.
    """

    compiled: bool
    reason: str
    hash: str
    modules: int

    def __str__(self) -> str:
        return f"compiled, {self.modules} modules" if self.compiled else f"pure Python: {self.reason}"


def index_name() -> str:
    """Return the name of the index file for this Python, such as `index.cpython-311-x86_64-linux-gnu`."""
    return "index" + SUFFIX[: SUFFIX.rindex(".")]


def hash_sources(package: str, paths: Iterable[str]) -> str:
    """Return a hash of the names and contents of source files, whose paths are relative to the package.

    Raises:
        OSError: A file cannot be read.
    """
    digest = blake2b(SUFFIX.encode(), digest_size=12)
    for path in paths:
        with open(f"{package}/{path}", "rb", buffering=0) as file:
            content = file.read()
        digest.update(b"%s\0%d\0" % (path.encode(), len(content)))
        digest.update(content)
    return digest.hexdigest()


def directories(package: str) -> list[str]:
    """Return the possible directories of compiled modules for a package, in order of preference."""
    found = [os.path.join(package, "_native")]
    source, name = os.path.split(os.path.dirname(package))
    if name == "src":
        found.append(os.path.join(source, "build", "compiled"))
    return found


def find(package: str) -> tuple[str, list[str], str]:
    """Return the directory of the binaries for the current sources, their modules, and a reason if there are none.

    The directory is "" if there are none.
    """
    reason = "not compiled"
    for directory in directories(package):
        try:
            with open(os.path.join(directory, index_name()), encoding="utf-8") as file:
                lines = file.read().split("\n")
        except OSError:
            continue
        # The first line lists the modules, the second the sources.
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
    """Meta path finder for the modules of one build."""

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
    """Install a finder for the compiled modules if they are current. Called once, by `import leveret`."""
    if os.environ.get("LEVERET_PURE", "0") not in ("", "0"):
        return BuildInfo(False, "LEVERET_PURE is set", "", 0)
    directory, modules, reason = find(PACKAGE)
    if not directory:
        return BuildInfo(False, reason, "", 0)
    sys.meta_path.insert(0, CompiledFinder(directory, modules))
    return BuildInfo(True, "", os.path.basename(directory), len(modules))

"""Build steps that pyproject.toml cannot express: compile the hot modules, and ship them beside their sources.

The wheel is pure if the hot modules cannot be compiled, or if LEVERET_PURE is set.
"""

from __future__ import annotations

import os
import shutil
import sys
from functools import cache
from pathlib import Path

import setuptools
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))

import build_compiled  # noqa: E402

OUTPUT = ROOT / "build" / "compiled"
PACKAGE = ROOT / "src" / "leveret"


@cache
def compiled() -> str:
    """Compile the hot modules and return their hash, or "" (with a notice) for a pure wheel."""
    why = "LEVERET_PURE is set" if os.environ.get("LEVERET_PURE") else build_compiled.obstacle()
    if not why:
        try:
            return build_compiled.build(PACKAGE, OUTPUT, (ROOT / "hot_modules.txt").read_text(encoding="utf-8"))
        except RuntimeError as error:
            why = f"the compilation failed:\n{error}"
    print(f"Building a pure wheel: {why}", file=sys.stderr)
    return ""


class Distribution(setuptools.Distribution):
    """Distribution that has extension modules, and thus a platform tag, if the hot modules were compiled."""

    def has_ext_modules(self) -> bool:
        return bool(compiled())


class BuildPy(build_py):
    """Build command that adds the compiled modules. An editable install finds them in the checkout."""

    def run(self) -> None:
        super().run()
        if self.editable_mode or not compiled():
            return
        target = Path(self.build_lib, "leveret", "_native")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(OUTPUT / compiled(), target / compiled())
        index = build_compiled.load_runtime(PACKAGE).index_name()
        shutil.copy(OUTPUT / index, target / index)


setuptools.setup(distclass=Distribution, cmdclass={"build_py": BuildPy})

"""The compiled build, tried on a small package of the same name in a separate checkout."""

from __future__ import annotations

import importlib.machinery
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import build_compiled

ROOT = Path(__file__).resolve().parents[2]
# A busy machine compiles for minutes.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
needs_compiler = pytest.mark.skipif(bool(build_compiled.obstacle()), reason=build_compiled.obstacle() or "-")

SHOW = "import leveret, leveret.hot.codec as c; print(leveret.build_info().compiled, c.twice(2), c.__file__)"


def make_checkout(root: Path) -> Path:
    """A checkout whose package has two hot modules, one of which imports a constant from a plain module."""
    package = root / "src" / "leveret"
    (package / "hot").mkdir(parents=True)
    for name in ("__init__.py", "_build.py", "_compiled.py", "_isolation.py", "py.typed"):
        shutil.copy(ROOT / "src" / "leveret" / name, package / name)
    shutil.copytree(ROOT / "tools", root / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, root / name)
    (root / "hot_modules.txt").write_text("# the list\nhot.*\n!hot.cold\nhot.later\n")
    (package / "hot" / "__init__.py").write_text("")
    (package / "constants.py").write_text("from typing import Final\n\nFACTOR: Final = 2\n")
    (package / "other.py").write_text("FACTOR = 5\n")
    (package / "hot" / "codec.py").write_text(
        "from leveret.constants import FACTOR\nfrom leveret.hot import table\n\n\n"
        "def twice(value: int) -> int:\n    return table.plain(value) * FACTOR\n"
    )
    (package / "hot" / "table.py").write_text("def plain(value: int) -> int:\n    return value\n")
    (package / "hot" / "cold.py").write_text("VALUE = 1\n")
    return root


def run(root: Path, code: str = SHOW, **environment: str) -> str:
    """Return the output of a fresh Python that imports the package of this checkout."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(root / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LEVERET_PURE": "",
        **environment,
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=root, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled checkout that tests copy before they change it."""
    root = make_checkout(tmp_path_factory.mktemp("checkout"))
    build_compiled.build(root / "src" / "leveret", root / "build" / "compiled", (root / "hot_modules.txt").read_text())
    return root


@pytest.fixture
def checkout(compiled: Path, tmp_path: Path) -> Iterator[Path]:
    yield Path(shutil.copytree(compiled, tmp_path / "checkout"))


def test_the_listing_takes_globs_and_exceptions_and_ignores_missing_modules(tmp_path: Path) -> None:
    package = make_checkout(tmp_path) / "src" / "leveret"
    assert build_compiled.hot_modules(package, "hot.*\n!hot.cold\nhot.later\n") == [
        "leveret.hot.codec",
        "leveret.hot.table",
    ]
    assert build_compiled.hot_modules(package, "*") == ["leveret.constants", "leveret.other"]


def test_the_hash_covers_the_imports_of_hot_modules(tmp_path: Path) -> None:
    package = make_checkout(tmp_path) / "src" / "leveret"
    sources = build_compiled.sources_of(package, ["leveret.hot.codec"])
    assert "constants.py" in sources and "hot/table.py" in sources
    assert "other.py" not in sources


def test_a_build_is_for_its_list_of_modules() -> None:
    assert build_compiled.identity(["leveret.hot.codec"]) != build_compiled.identity(
        ["leveret.hot.codec", "leveret.hot.table"]
    )


@needs_compiler
def test_compiled_modules_are_used(checkout: Path) -> None:
    compiled, value, file = run(checkout).split()
    assert (compiled, value) == ("True", "4")
    assert file.endswith(importlib.machinery.EXTENSION_SUFFIXES[0])
    assert str(checkout / "build" / "compiled") in file


@needs_compiler
def test_a_module_removed_from_the_list_stays_plain(checkout: Path) -> None:
    assert run(checkout, "import leveret.hot.cold as c; print(c.__file__)").endswith("cold.py")


@needs_compiler
def test_an_edited_hot_module_runs_as_edited(checkout: Path) -> None:
    path = checkout / "src" / "leveret" / "hot" / "table.py"
    path.write_text("def plain(value: int) -> int:\n    return value + 1\n")
    compiled, value, file = run(checkout).split()
    assert (compiled, value) == ("False", "6")
    assert file.endswith(".py")
    assert "edited" in run(checkout, "import leveret; print(leveret.build_info().reason)")


@needs_compiler
def test_an_edited_constant_that_was_copied_into_the_binary_is_not_stale(checkout: Path) -> None:
    (checkout / "src" / "leveret" / "constants.py").write_text("from typing import Final\n\nFACTOR: Final = 3\n")
    assert run(checkout).split()[:2] == ["False", "6"]


@needs_compiler
def test_other_edits_do_not_matter(checkout: Path) -> None:
    (checkout / "src" / "leveret" / "other.py").write_text("FACTOR = 6\n")
    os.utime(checkout / "src" / "leveret" / "hot" / "table.py", (1, 1))
    assert run(checkout).split()[:2] == ["True", "4"]


@needs_compiler
def test_a_reverted_edit_finds_the_old_binary(checkout: Path) -> None:
    path = checkout / "src" / "leveret" / "hot" / "table.py"
    before = path.read_text()
    path.write_text(before + "\n# a remark\n")
    assert run(checkout).startswith("False")
    path.write_text(before)
    assert run(checkout).startswith("True")


@needs_compiler
def test_a_build_that_was_cut_off_is_not_used(checkout: Path) -> None:
    next((checkout / "build" / "compiled").glob("*/complete")).unlink()
    assert run(checkout).split()[:2] == ["False", "4"]


@needs_compiler
def test_pure_is_a_switch(checkout: Path) -> None:
    assert run(checkout, LEVERET_PURE="1").split()[:2] == ["False", "4"]
    assert run(checkout, LEVERET_PURE="0").split()[:2] == ["True", "4"]


@needs_compiler
def test_compiling_again_does_nothing(checkout: Path) -> None:
    binaries = sorted((checkout / "build" / "compiled").glob("*/*.so"))
    before = [path.stat().st_mtime_ns for path in binaries]
    assert binaries
    build_compiled.build(
        checkout / "src" / "leveret", checkout / "build" / "compiled", (checkout / "hot_modules.txt").read_text()
    )
    assert [path.stat().st_mtime_ns for path in binaries] == before


@needs_compiler
def test_code_that_does_not_compile_is_reported(tmp_path: Path) -> None:
    root = make_checkout(tmp_path)
    (root / "src" / "leveret" / "hot" / "table.py").write_text("def plain(value: int) -> int:\n    return 'no'\n")
    with pytest.raises(RuntimeError, match=r"table\.py:2"):
        build_compiled.build(root / "src" / "leveret", root / "build" / "compiled", "hot.*\n")
    assert run(root, "import leveret; print(leveret.build_info())") == "pure Python: not compiled"


def build_wheel(root: Path, **environment: str) -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", str(root / "dist"), "."],
        cwd=root,
        env={**os.environ, "LEVERET_PURE": "", **environment},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (root / "dist").glob("*.whl")
    return wheel


@needs_compiler
def test_a_wheel_holds_sources_and_binaries_and_uses_the_latter(checkout: Path, tmp_path: Path) -> None:
    wheel = build_wheel(checkout)
    assert not wheel.name.endswith("-none-any.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(site)
    assert "leveret/hot/codec.py" in names and "leveret/py.typed" in names
    (directory,) = (site / "leveret" / "_native").glob("*/complete")
    assert directory.parent.name in {path.parent.name for path in (checkout / "build" / "compiled").glob("*/complete")}
    shutil.rmtree(checkout)
    (tmp_path / "empty").mkdir()
    compiled, value, file = run(tmp_path / "empty", PYTHONPATH=str(site)).split()
    assert (compiled, value) == ("True", "4")
    assert str(site) in file


def test_a_wheel_without_a_compiler_is_pure(tmp_path: Path) -> None:
    root = make_checkout(tmp_path)
    wheel = build_wheel(root, CC="/no/such/compiler")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if "_native" in name]


@needs_compiler
def test_a_pure_wheel_is_built_on_demand(checkout: Path) -> None:
    wheel = build_wheel(checkout, LEVERET_PURE="1")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if "_native" in name]

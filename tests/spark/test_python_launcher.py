"""The script that starts Spark's Python processes with the PySpark that pip installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leveret.spark.python_launcher import is_installed, is_this_python, write_launcher

PRINT_PATH = "import os; print(os.environ['PYTHONPATH'])"


def printed(*command: str, path: str) -> str:
    found = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
    return found.stdout.strip()


def test_the_launcher_leaves_only_the_archives_of_spark_out(tmp_path: Path) -> None:
    home = tmp_path / "it's a spark"
    home.mkdir()
    launcher = write_launcher(tmp_path, sys.executable, str(home))
    kept = [str(tmp_path / "own modules"), "/opt/other.zip", f"{home}/python", "/opt/*"]
    archives = [f"{home}/python/lib/pyspark.zip", f"{home}/python/lib/py4j-0.10.9.9-src.zip", f"{home}/jars/spark-core.jar"]
    path = ":".join([*archives, *kept])
    assert printed(launcher, "-c", PRINT_PATH, path=path) == ":".join(kept)


def test_the_launcher_passes_arguments_and_becomes_python(tmp_path: Path) -> None:
    launcher = write_launcher(tmp_path, sys.executable, "/opt/spark")
    command = "import os, sys; print(os.getpid(), sys.executable, sys.argv[1:])"
    process = subprocess.Popen([launcher, "-c", command, "two words", "$x"], stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate()
    assert output.strip() == f"{process.pid} {sys.executable} ['two words', '$x']"


def test_spark_is_installed_if_it_is_the_package_beside_py4j(tmp_path: Path) -> None:
    packages, other = tmp_path / "packages", tmp_path / "other"
    for directory in (packages / "pyspark", packages / "py4j", other / "pyspark"):
        directory.mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(packages / "pyspark")
    path = [str(tmp_path), str(other), str(packages)]
    assert is_installed(str(packages / "pyspark"), path)
    assert is_installed(str(link), path)
    assert not is_installed(str(other / "pyspark"), path)
    assert not is_installed(str(tmp_path / "spark"), path)


def test_a_python_of_another_environment_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python3"
    python.symlink_to(sys.executable)
    assert is_this_python(sys.executable)
    assert not is_this_python(str(python))
    assert not is_this_python(str(tmp_path / "missing"))
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    assert is_this_python(os.path.basename(sys.executable))

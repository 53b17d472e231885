"""Starts Spark's Python processes with the PySpark that pip installed.

Spark puts `pyspark.zip` first in the PYTHONPATH of its Python processes. A zip file keeps no bytecode, so each of them
compiles the modules that it imports, which takes longer than the rest of its start. The package that pip installed has the
same modules with bytecode.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark import SparkContext

PYTHON_VARIABLE: Final = "PYSPARK_PYTHON"

_NAME: Final = "leveret-python"
_SCRIPT: Final = """\
#!/bin/sh
set -f
IFS=:
path=
for entry in $PYTHONPATH; do
    case $entry in
    {home}/python/lib/*.zip | {home}/jars/*.jar) ;;
    *) path=${{path:+$path:}}$entry ;;
    esac
done
PYTHONPATH=$path
export PYTHONPATH
exec {python} "$@"
"""


def select_python(context: SparkContext) -> None:
    """Make a session with a local master run the Python of this process, unless PYSPARK_PYTHON names another one.

    If pip installed PySpark there, the session runs a script in its temporary directory, which leaves Spark's archives out
    of the PYTHONPATH and becomes that Python.
    """
    if PYTHON_VARIABLE not in os.environ:
        context.pythonExec = sys.executable
    jvm = context._jvm
    assert jvm is not None
    home = jvm.java.lang.System.getenv("SPARK_HOME")
    if home is not None and is_this_python(context.pythonExec) and is_installed(home, sys.path):
        launcher = write_launcher(Path(context._temp_dir), sys.executable, home)
        if os.access(launcher, os.X_OK):  # not on a file system that is mounted with noexec
            context.pythonExec = launcher


def is_this_python(command: str) -> bool:
    """Return whether a command is the Python of this process, also by another name in the same directory."""
    found = shutil.which(command)
    if found is None:
        return False
    return os.path.samefile(os.path.dirname(found), os.path.dirname(sys.executable)) and os.path.samefile(
        found, sys.executable
    )


def is_installed(home: str, path: Iterable[str]) -> bool:
    """Return whether a Spark is the package `pyspark` in one of these directories, beside `py4j`."""
    return any(
        os.path.realpath(os.path.join(entry, "pyspark")) == os.path.realpath(home)
        and os.path.isdir(os.path.join(entry, "py4j"))
        for entry in path
    )


def write_launcher(directory: Path, python: str, home: str) -> str:
    """Write the script that runs a Python without the archives of a Spark, and return its path."""
    script = directory / _NAME
    script.write_text(_SCRIPT.format(home=shlex.quote(home), python=shlex.quote(python)))
    script.chmod(0o700)
    return str(script)

"""Removal of the working directory from the module search path, in this process and its children.

Python searches the working directory first if a program is started with `-m` or `-c`, or if `PYTHONPATH` has an empty
item. A file `re.py` in a directory that others may write to would then run with the broker's privileges.

Python imports a few modules before it runs a program that is started with `-m`. Only `python -P` protects these imports.
The installed command `leveret` does not need `-P`.
"""

# Python loads these modules before any search, so that they cannot come from the working directory. `__future__` could.
import os
import sys

# The parent directory of this package, which stays on the path even if it is the working directory.
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def search_path() -> list[str]:
    """Return the absolute entries of `sys.path` without the working directory.

    The working directory stays if it contains this package, or if `PYTHONPATH` contains its absolute path.
    """
    trusted = {ROOT}
    if not sys.flags.ignore_environment:
        trusted.update(path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(path))
    try:
        here = os.path.realpath(os.getcwd())
    except FileNotFoundError:  # it was removed: nothing can be imported from it
        here = ""
    return [path for path in sys.path if os.path.isabs(path) and (path in trusted or os.path.realpath(path) != here)]


def remove_working_directory() -> None:
    """Remove the working directory from this process's search path."""
    sys.path[:] = search_path()


def is_started_as_module() -> bool:
    """Return whether `python -m leveret` is starting this process, before it runs any code of Leveret."""
    if sys.argv[:1] != ["-m"]:
        return False
    word = sys.orig_argv[-len(sys.argv)]
    name = word.partition("m")[2] if word.startswith("-") else word
    return name.partition(".")[0] == "leveret"


def python_command(module: str) -> list[str]:
    """Return the command of a child process that calls `main()` of a Leveret module.

    The child is isolated (`-I`): it ignores the working directory, the user's site directory and `PYTHON*` variables. It
    uses the search path of this process.
    """
    options = ["-I", "-B"] if sys.dont_write_bytecode else ["-I"]
    start = f"import sys; sys.path[:] = {search_path()!r}\nfrom {module} import main\nmain()"
    return [sys.executable, *options, "-c", start]

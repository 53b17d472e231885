"""Keeps the working directory off the search path of modules, in this process and in its children.

Python looks in the working directory first when a program is started with `-m` or `-c`, and wherever `PYTHONPATH` has
an empty item. A file `re.py` in a directory that others may write to would then run with the broker's rights.

Python itself imports a few modules before any code of a program that is started with `-m`: only `python -P` keeps the
working directory away from those. The installed command `leveret` needs no `-P`.
"""

# Loaded by Python before any search: neither can come from the working directory. `__future__` could.
import os
import sys

# The directory that holds this package: it stays, even when it is the working directory.
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def search_path() -> list[str]:
    """The absolute entries of `sys.path` without the working directory.

    The working directory stays when this package lies in it, or when `PYTHONPATH` names it by an absolute path.
    """
    trusted = {ROOT}
    if not sys.flags.ignore_environment:
        trusted.update(path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(path))
    try:
        here = os.path.realpath(os.getcwd())
    except FileNotFoundError:  # it was removed: nothing can be imported from it
        here = ""
    return [path for path in sys.path if os.path.isabs(path) and (path in trusted or os.path.realpath(path) != here)]


def leave_working_directory_out() -> None:
    """Remove the working directory from this process's search path."""
    sys.path[:] = search_path()


def is_started_as_module() -> bool:
    """Whether this process is being started by `python -m leveret`, which has not run its code yet."""
    if sys.argv[:1] != ["-m"]:
        return False
    word = sys.orig_argv[-len(sys.argv)]
    name = word.partition("m")[2] if word.startswith("-") else word
    return name.partition(".")[0] == "leveret"


def python_command(module: str) -> list[str]:
    """The command of a child process that calls `main()` of a module of ours.

    The child is isolated (`-I`): it ignores the working directory, the user's site directory and `PYTHON*` variables, and
    looks for modules where this process does.
    """
    options = ["-I", "-B"] if sys.dont_write_bytecode else ["-I"]
    start = f"import sys; sys.path[:] = {search_path()!r}\nfrom {module} import main\nmain()"
    return [sys.executable, *options, "-c", start]

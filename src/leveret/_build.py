"""Version of Leveret, and build information.

Importing this module selects the compiled modules, so the package imports it before its other modules.
"""

import os

from leveret._compiled import PACKAGE, BuildInfo, install

__version__ = "0.2.0"

_BUILD = install()
# Directory of the checkout that this package is a part of, if it is.
_SOURCE, _FOLDER = os.path.split(os.path.dirname(PACKAGE))
IS_CHECKOUT = _FOLDER == "src" and os.path.isfile(os.path.join(_SOURCE, "Makefile"))


def build_info() -> BuildInfo:
    """Return whether this process runs the compiled hot modules or the plain ones, and why."""
    return _BUILD


def installation(extra: str) -> str:
    """Return the shell command that installs an extra: with make in a checkout, otherwise with pip."""
    return f"make extra-{extra}" if IS_CHECKOUT else f"pip install 'leveret[{extra}]'"

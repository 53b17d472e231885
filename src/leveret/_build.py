"""Version of Leveret, and build information.

Importing this module selects the compiled modules, so the package imports it before its other modules.
"""

from leveret._compiled import BuildInfo, install

__version__ = "0.2.0"

_BUILD = install()


def build_info() -> BuildInfo:
    """Return whether this process runs the compiled hot modules or the plain ones, and why."""
    return _BUILD

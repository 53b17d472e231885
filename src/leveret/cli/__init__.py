"""The command `leveret`. Each group of commands is a module, which is imported when it is used."""

from __future__ import annotations

import io
import sys


def main() -> None:
    """Run the command line of this process."""
    from leveret._isolation import leave_working_directory_out

    leave_working_directory_out()
    from leveret.cli.app import leveret

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names that clients choose may contain characters that the terminal's encoding lacks.
            stream.reconfigure(errors="backslashreplace")
    leveret(prog_name="leveret")

"""The command `leveret`: one file a group of commands, imported when it is used."""

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
            # Clients choose names in characters that the terminal's encoding may not have.
            stream.reconfigure(errors="backslashreplace")
    leveret(prog_name="leveret")

"""The command `leveret`. Each command group is a module that is imported on first use."""

from __future__ import annotations

import io
import sys


def main() -> None:
    """Entry point of the command `leveret`."""
    from leveret._isolation import remove_working_directory

    remove_working_directory()
    from leveret.cli.app import leveret

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names chosen by clients may contain characters that the terminal cannot encode.
            stream.reconfigure(errors="backslashreplace")
    leveret(prog_name="leveret")

"""The command `leveret`: one file a group of commands, imported when it is used."""

from __future__ import annotations


def main() -> None:
    """Run the command line of this process."""
    from leveret.cli.app import leveret

    leveret(prog_name="leveret")

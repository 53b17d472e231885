"""Passwords for commands: from a file, from standard input, or asked for; never an argument, which others see."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from leveret.cli.failed import Failed

Function = TypeVar("Function", bound=Callable[..., Any])


def password_file_option(function: Function) -> Function:
    return click.option("--password-file", type=click.Path(path_type=Path), metavar="PATH",
                        help="File whose first line is the password; - is standard input.")(function)


def get_password(path: Path | None) -> str:
    """The password from the file, or from the terminal. `Failed` where there is neither."""
    if path is None:
        if not sys.stdin.isatty():
            raise Failed("no terminal to ask for the password on; give it by --password-file (- is standard input)")
        asked: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
        return asked
    try:
        content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        lines = content.decode("utf-8").splitlines()
    except OSError as error:
        raise Failed(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Failed(f"{path}: the password is not UTF-8") from None
    if not lines or not lines[0]:
        raise Failed(f"{'standard input' if str(path) == '-' else path} has no password in its first line")
    return lines[0]

"""Passwords from a file, standard input or a prompt, but never from an argument, which other users can see."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from leveret.cli.failed import Failed

Function = TypeVar("Function", bound=Callable[..., None])


def password_file_option(function: Function) -> Function:
    """Add --password-file."""
    return click.option(
        "--password-file",
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="File whose first line is the password; - is standard input.",
    )(function)


def get_password(path: Path | None) -> str:
    """Read the password from the file, or prompt for it. Raises `Failed` if there is no terminal."""
    if path is None:
        if not sys.stdin.isatty():
            raise Failed("cannot prompt for the password without a terminal; use --password-file (- is standard input)")
        password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
        return password
    try:
        content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        lines = content.decode("utf-8").splitlines()
    except OSError as error:
        raise Failed(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Failed(f"{path}: the password is not UTF-8") from None
    if not lines or not lines[0]:
        raise Failed(f"the first line of {'standard input' if str(path) == '-' else path} is empty; expected the password")
    return lines[0]

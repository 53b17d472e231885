"""`leveret users`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from leveret.cli.failed import Failed
from leveret.cli.listing import listing
from leveret.cli.options import FilePath
from leveret.cli.output import limit
from leveret.cli.remote import current, remote_options
from leveret.security.passwords import ARGON2ID, RABBITMQ_ALGORITHMS, RABBITMQ_SHA256

Function = TypeVar("Function", bound=Callable[..., None])


def password_file_option(function: Function) -> Function:
    """Add --password-file."""
    return click.option(
        "--password-file",
        type=FilePath(path_type=Path),
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


def password_hash_options(function: Function) -> Function:
    """Add --password-hash and --hashing-algorithm."""
    function = click.option(
        "--hashing-algorithm",
        type=click.Choice([ARGON2ID, *RABBITMQ_ALGORITHMS]),
        help=f"Algorithm of --password-hash. Default: argon2id for $argon2id$..., else {RABBITMQ_SHA256}.",
    )(function)
    return click.option(
        "--password-hash",
        metavar="HASH",
        help="Password hash of argon2id or of RabbitMQ; an empty one means no password.",
    )(function)


COLUMNS = (
    ("name", "name"),
    ("tags", "tags", ", ".join),
    ("source", "source"),
    ("vhosts", "vhosts", ", ".join),
    ("max_connections", "max connections", limit),
    ("max_channels", "max channels", limit),
    ("scram", "SCRAM"),
    ("loopback_only", "loopback only"),
)


@listing("List, add, change and delete users. Users from the configuration file can only be changed there.")
def users() -> None:
    """List users."""
    current().show_list("users.list", COLUMNS)


@users.command()
@click.argument("name")
@password_file_option
@password_hash_options
@click.option("--no-password", is_flag=True, help="Add a user who logs in only with EXTERNAL or ANONYMOUS.")
@click.option("--tag", "tags", multiple=True, help="Tag, such as administrator; repeatable.")
@click.option(
    "--max-connections",
    type=click.IntRange(-1),
    default=0,
    help="Maximum number of connections; 0 applies limits.connections_per_user, -1 allows none.",
)
@click.option(
    "--max-channels", type=click.IntRange(-1), default=0, help="Maximum number of channels; 0 is unlimited, -1 allows none."
)
@remote_options
def add(
    name: str,
    password_file: Path | None,
    password_hash: str | None,
    hashing_algorithm: str | None,
    no_password: bool,
    tags: tuple[str, ...],
    max_connections: int,
    max_channels: int,
) -> None:
    """Add a user. Prompts for the password, or reads it from --password-file."""
    if no_password + (password_file is not None) + (password_hash is not None) > 1:
        raise click.UsageError("expected only one of --password-file, --password-hash and --no-password")
    broker = current()
    password = None if no_password or password_hash is not None else get_password(password_file)
    reply = broker.call(
        "users.add",
        name=name,
        password=password,
        password_hash=password_hash,
        hashing_algorithm=hashing_algorithm,
        tags=list(tags),
        max_connections=max_connections,
        max_channels=max_channels,
    )
    click.echo(f"added user '{name}'; set its permissions: leveret permissions set {name} --vhost / ...")
    if reply["default_removed"]:
        click.echo("removed the default user 'guest', which exists only while there is no other; add it to keep it")


@users.command()
@click.argument("name")
@click.option("--password", "ask", is_flag=True, help="Prompt for a new password.")
@password_file_option
@password_hash_options
@click.option("--tag", "tags", multiple=True, help="New tag; repeatable. The new tags replace all old ones.")
@click.option("--no-tags", is_flag=True, help="Remove all tags.")
@click.option(
    "--max-connections",
    type=click.IntRange(-1),
    help="Maximum number of connections; 0 applies limits.connections_per_user, -1 allows none.",
)
@click.option("--max-channels", type=click.IntRange(-1), help="Maximum number of channels; 0 is unlimited, -1 allows none.")
@remote_options
def change(
    name: str,
    ask: bool,
    password_file: Path | None,
    password_hash: str | None,
    hashing_algorithm: str | None,
    tags: tuple[str, ...],
    no_tags: bool,
    max_connections: int | None,
    max_channels: int | None,
) -> None:
    """Change a user. Options that are not given leave their settings unchanged."""
    broker = current()
    password = get_password(password_file) if ask or password_file is not None else None
    new_tags = [] if no_tags else list(tags) or None
    if password is not None and password_hash is not None:
        raise click.UsageError("expected either a password or --password-hash")
    if password is None and password_hash is None and new_tags is None and max_connections is None and max_channels is None:
        raise click.UsageError("nothing to change; see --help for the options")
    broker.call(
        "users.change",
        name=name,
        password=password,
        password_hash=password_hash,
        hashing_algorithm=hashing_algorithm,
        tags=new_tags,
        max_connections=max_connections,
        max_channels=max_channels,
    )
    click.echo(f"changed user '{name}'")


@users.command()
@click.argument("name")
@remote_options
def delete(name: str) -> None:
    """Delete a user and close its connections."""
    closed = current().call("users.delete", name=name)["connections"]
    click.echo(f"deleted user '{name}', closed {closed} connections")


@users.command("hash")
@password_file_option
def hash_password(password_file: Path | None) -> None:
    """Hash a password for the configuration file. The setting is `password_hash`. Does not need a broker."""
    from leveret.security.passwords import Hasher

    click.echo(Hasher().hash(get_password(password_file).encode()))

"""Shared options and calls of the commands that manage a running broker."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from leveret.cli.failed import ERROR, NO_BROKER, REFUSED, Failed
from leveret.cli.http_options import CA, TOKEN, URL, http_options, keep, key_of
from leveret.cli.options import FilePath, together
from leveret.cli.output import Columns, Item, Reply, label, show_json, show_table
from leveret.cli.tables import read_table
from leveret.management import control_client

if TYPE_CHECKING:
    from leveret.management.http_client import HttpControl

_DATA_DIR: Final = key_of("data_dir")
_CONFIG: Final = key_of("config")
_JSON: Final = key_of("json")
# Conditions of a wrong password or missing rights. The HTTP API has the first two.
_NOT_ALLOWED: Final = ("not_authorized", "not_authorised", "access-refused", "role-required")


# The options of every management command. They may precede or follow the name of a subcommand.
remote_options = together(
    http_options,
    click.option(
        "--data-dir",
        "data_dir",
        type=FilePath(path_type=Path),
        callback=keep,
        expose_value=False,
        help="The broker's data directory.",
    ),
    click.option(
        "--config",
        "config",
        type=FilePath(path_type=Path),
        callback=keep,
        expose_value=False,
        help="The broker's configuration file.",
    ),
    click.option("--json", "json", is_flag=True, default=None, callback=keep, expose_value=False, help="Print JSON."),
)
# --vhost for lists, which default to all vhosts.
vhost_option = click.option("--vhost", help="Only this vhost.")
# --vhost for commands about a single object.
in_vhost_option = click.option("--vhost", default="/", show_default=True, help="The vhost.")
# --argument NAME=VALUE, repeatable.
argument_option = click.option(
    "--argument",
    "arguments",
    multiple=True,
    metavar="NAME=VALUE",
    help="Argument; repeatable. VALUE is JSON, or text if it is not valid JSON.",
)


def read_arguments(pairs: tuple[str, ...]) -> Item:
    """Return an argument table from NAME=VALUE strings."""
    return read_table(pairs, "--argument")


def warn_of_misspelt(known: Iterable[str], arguments: Item) -> None:
    """Print a warning for each argument that is probably misspelt."""
    from leveret.broker.arguments import misspelt_arguments  # of few commands

    for warning in misspelt_arguments(known, arguments):
        click.echo(f"Warning: {warning}", err=True)


class Refused(Failed):
    """The broker refuses a call. `condition` is that of its error, "" if it is unknown."""

    def __init__(self, text: str, condition: str) -> None:
        super().__init__(text, REFUSED if condition in _NOT_ALLOWED else ERROR)
        self.condition = condition


class Remote:
    """A running broker.

    Args:
        execute: Executes an operation of the control socket with arguments.
        as_json: Whether to print JSON.
    """

    def __init__(self, execute: Callable[[str, Item], Reply], as_json: bool) -> None:
        self._execute = execute
        self.as_json = as_json

    def call(self, call: str, /, **arguments: Reply) -> Reply:
        """Return the result of a call. Omits arguments that are None.

        Raises:
            Failed: No broker is running, or it refuses the call.
        """
        given = {key: value for key, value in arguments.items() if value is not None}
        try:
            return self._execute(call, given)
        except control_client.NoBroker as error:
            raise Failed(str(error), NO_BROKER) from None
        except control_client.CallFailed as error:
            raise Refused(str(error), error.condition) from None

    def find(self, call: str, /, **arguments: Reply) -> Reply:
        """Return the result of a call; None if the object does not exist. Raises `Failed`."""
        try:
            return self.call(call, **arguments)
        except Refused as refused:
            if refused.condition == "not-found":
                return None
            raise

    def show_list(self, call: str, columns: Columns, order: Sequence[str] = (), **arguments: Reply) -> None:
        """Print the list that a call returns, as a table, or as JSON with --json. `order` names the sort keys."""
        found: list[Item] = self.call(call, **arguments)
        if order:
            found.sort(key=itemgetter(*order))
        if self.as_json:
            show_json(found)
        else:
            show_table(found, columns)

    def show_one(self, call: str, **arguments: Reply) -> None:
        """Print the object that a call returns, one field per line, or as JSON with --json."""
        found: Item = self.call(call, **arguments)
        if self.as_json:
            show_json(found)
        else:
            show_table(
                [{"detail": label(key), "value": value} for key, value in found.items()],
                (("detail", "detail"), ("value", "value")),
            )


def current(timeout: float = control_client.TIMEOUT) -> Remote:
    """Return the broker selected by the options of the running command and its groups.

    Args:
        timeout: Seconds for the broker to answer.
    """
    kept = click.get_current_context().meta
    as_json = bool(kept.get(_JSON))
    url = selected_url()
    if url is not None:
        return Remote(partial(_http_control(url, kept.get(TOKEN), kept.get(CA)).call, timeout=timeout), as_json)
    return Remote(partial(control_client.call, data_directory(), timeout=timeout), as_json)


def data_directory() -> Path:
    """Return the data directory selected by the options of the running command and its groups, or by the configuration."""
    kept = click.get_current_context().meta
    data_dir: Path | None = kept.get(_DATA_DIR)
    return (_configured(kept.get(_CONFIG)) if data_dir is None else data_dir).absolute()


def selected_url() -> str | None:
    """Return the URL of the HTTP API that the running command is to use; None for the control socket."""
    kept = click.get_current_context().meta
    url: str | None = kept.get(URL)
    if url is None and _DATA_DIR not in kept and _CONFIG not in kept:
        url = _url_of_environment()
    return url


def _url_of_environment() -> str | None:
    """Return LEVERET_URL if it is that of an HTTP API. Commands that are AMQP clients use the same variable."""
    url = os.environ.get("LEVERET_URL", "")
    return url if url.startswith(("http://", "https://")) else None


def _http_control(url: str, token: str | None, ca: Path | None) -> HttpControl:
    # Commands on this machine start faster without it.
    from leveret.management.http_client import HttpControl
    from leveret.management.http_endpoint import InvalidUrl

    token = token or os.environ.get("LEVERET_TOKEN") or None
    if token is not None and not (token.isascii() and token.isprintable()):
        raise click.UsageError("the access token has other than printable ASCII characters (--token, LEVERET_TOKEN)")
    try:
        return HttpControl(url, token, ca)
    except InvalidUrl as error:
        raise click.UsageError(str(error)) from None


def _configured(path: Path | None) -> Path:
    from leveret.config import ConfigError, load_config

    try:
        return load_config(path or os.environ.get("LEVERET_CONFIG")).server.data_path
    except ConfigError as error:
        raise Failed(str(error)) from None

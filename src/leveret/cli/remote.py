"""Shared parts of the commands that talk to a running broker: options and calls."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import click

from leveret.cli.failed import NO_BROKER, Failed
from leveret.cli.options import together
from leveret.cli.output import Columns, show_json, show_table
from leveret.cli.tables import read_table
from leveret.management import control_client

# The options of every command that talks to a broker. They may precede or follow the name of a subcommand.
remote_options = together(
    click.option("--data-dir", type=click.Path(path_type=Path), help="The broker's data directory."),
    click.option("--config", "config_path", type=click.Path(path_type=Path), help="The broker's config file."),
    click.option("--json", "as_json", is_flag=True, default=None, help="Print JSON."),
)
# --vhost of lists, which default to all vhosts.
vhost_option = click.option("--vhost", help="Only this vhost.")
# --vhost of commands about a single object.
in_vhost_option = click.option("--vhost", default="/", show_default=True, help="The vhost.")
# --argument NAME=VALUE, which may be given several times.
argument_option = click.option("--argument", "arguments", multiple=True, metavar="NAME=VALUE",
                               help="An argument; the value is JSON, or text if it is not valid JSON.")


def read_arguments(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Return an argument table from NAME=VALUE strings."""
    return read_table(pairs, "--argument")


class Remote:
    """A running broker."""

    def __init__(self, data_dir: Path, as_json: bool) -> None:
        self.data_dir = data_dir
        self.as_json = as_json

    def call(self, call: str, /, **arguments: Any) -> Any:
        """Return the result of a call. Arguments that are None are omitted.

        Raises:
            Failed: No broker answers, or it refuses the call.
        """
        given = {key: value for key, value in arguments.items() if value is not None}
        try:
            return control_client.call(self.data_dir, call, given)
        except control_client.NoBroker as error:
            raise Failed(str(error), NO_BROKER) from None
        except control_client.CallFailed as error:
            raise Failed(str(error)) from None

    def show_list(self, call: str, columns: Columns, order: Sequence[str] = (), **arguments: Any) -> None:
        """Print the items that a call lists as a table, or as JSON with --json. `order` names the keys to sort by."""
        found: list[dict[str, Any]] = self.call(call, **arguments)
        if order:
            found.sort(key=itemgetter(*order))
        if self.as_json:
            show_json(found)
        else:
            show_table(found, columns)

    def show_one(self, call: str, **arguments: Any) -> None:
        """Print the details of the object that a call describes, one per line, or as JSON with --json."""
        found: dict[str, Any] = self.call(call, **arguments)
        if self.as_json:
            show_json(found)
        else:
            show_table([{"detail": key.replace("_", " "), "value": value} for key, value in found.items()],
                       (("detail", "detail"), ("value", "value")))


def current() -> Remote:
    """Return the broker that the options of the running command and its group select."""
    context: click.Context | None = click.get_current_context()
    found: dict[str, Any] = {}
    while context is not None:
        for name in ("data_dir", "config_path", "as_json"):
            value = context.params.get(name)
            if value is not None:
                found.setdefault(name, value)
        context = context.parent
    data_dir = found.get("data_dir")
    if data_dir is None:
        data_dir = _configured(found.get("config_path"))
    return Remote(data_dir.absolute(), bool(found.get("as_json")))


def _configured(path: Path | None) -> Path:
    import os

    from leveret.config import ConfigError, load_config

    try:
        return load_config(path or os.environ.get("LEVERET_CONFIG")).server.data_path
    except ConfigError as error:
        raise Failed(str(error)) from None

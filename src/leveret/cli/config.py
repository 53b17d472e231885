"""`leveret config`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from leveret.cli.config_options import config_options, load_traced
from leveret.cli.failed import ERROR, Failed
from leveret.cli.output import Item, show_json, show_table

if TYPE_CHECKING:
    from leveret.config import Config

_DEFAULT: Final = "default"


def _loaded(config_path: Path | None, settings: tuple[str, ...]) -> tuple[Config, dict[str, str]]:
    from leveret.config import ConfigError

    try:
        return load_traced(config_path, settings)
    except ConfigError as error:
        raise Failed(str(error)) from None


@click.group()
def config() -> None:
    """Show, check and compare the configuration."""


@config.command()
@click.option("--changed", is_flag=True, help="Only settings that are not defaults.")
@config_options
def show(config_path: Path | None, settings: tuple[str, ...], as_json: bool, changed: bool) -> None:
    """Print the effective configuration as TOML.

    It is that of `leveret serve`, with the source of each setting.

    Passwords and the database's address are not shown.
    """
    from leveret.config.flat import MASK, flat_settings, toml_value

    loaded, sources = _loaded(config_path, settings)
    rows: list[Item] = [
        {"setting": name, "value": value, "source": sources.get(name, _DEFAULT)}
        for name, value in flat_settings(loaded).items()
        if not changed or name in sources
    ]
    if as_json:
        show_json(rows)
        return
    for row in rows:
        hidden = "# " if row["value"] in (None, MASK) else ""
        value = "(not set)" if row["value"] is None else "(hidden)" if hidden else toml_value(row["value"])
        click.echo(f"{hidden}{row['setting']} = {value}  # {row['source']}")


@config.command()
@config_options
def check(config_path: Path | None, settings: tuple[str, ...], as_json: bool) -> None:
    """Check a file and the environment without starting a broker.

    Prints all errors. Also reads the files that the settings name: passwords, certificates and keys.
    """
    from leveret.config import ConfigError

    try:
        loaded, _ = load_traced(config_path, settings)
        problems = list(_unusable(loaded))
    except ConfigError as error:
        problems = str(error).splitlines()
    if as_json:
        show_json({"valid": not problems, "errors": problems})
    elif not problems:
        click.echo("the configuration is valid")
    else:
        for problem in problems:
            click.echo(f"Error: {problem}", err=True)
    if problems:
        raise SystemExit(ERROR)


def _unusable(loaded: Config) -> Iterator[str]:
    """Return an error for each setting that is valid but whose file or pattern cannot be used."""
    from leveret.config import ConfigError
    from leveret.management.http.masks import Masks
    from leveret.node.composition import make_tls
    from leveret.node.static_shovels import static_shovels
    from leveret.security.declared import check_realms, declared_users
    from leveret.security.tls import ServerTls, TlsError, TlsSettings

    management = loaded.management
    steps: list[Callable[[], object]] = [partial(declared_users, {name: user}) for name, user in loaded.users.items()]
    steps += [partial(check_realms, {name: vhost}) for name, vhost in loaded.vhosts.items()]
    steps += [partial(static_shovels, {name: shovel}) for name, shovel in loaded.shovels.items()]
    steps.append(partial(make_tls, loaded.tls))
    for step in steps:
        try:
            step()
        except (ConfigError, TlsError) as error:
            yield str(error)
    if management.tls_cert is not None:
        key = Path(management.tls_key) if management.tls_key else None
        try:
            ServerTls(TlsSettings(Path(management.tls_cert), key))
        except TlsError as error:
            yield f"'management.tls_cert': {error}"
    try:
        Masks(management.mask)
    except ValueError as error:
        yield f"'management.mask' has an {error}"


@config.command()
@click.option("--running", is_flag=True, help="Compare with the running broker of the data directory.")
@config_options
def diff(config_path: Path | None, settings: tuple[str, ...], as_json: bool, running: bool) -> None:
    """Compare with the defaults, or with the running broker.

    With --running, shows which differences SIGHUP applies, and which need a restart. Passwords are not compared.
    """
    from leveret.cli.serving import needs_restart
    from leveret.config import Config
    from leveret.config.flat import differences, flat_settings

    loaded, sources = _loaded(config_path, settings)
    new = flat_settings(loaded)
    old = _running_settings(loaded) if running else flat_settings(Config())
    rows: list[Item] = []
    for name in differences(old, new):
        row: Item = {"setting": name, "running" if running else _DEFAULT: old.get(name), "value": new.get(name)}
        if running:
            row["applied_by"] = "restart" if needs_restart(name, old, new) else "reload"
        rows.append(row | {"source": sources.get(name, _DEFAULT)})
    if as_json:
        show_json(rows)
    elif not rows:
        click.echo(f"no differences from the {'running broker' if running else 'defaults'}")
    elif running:
        headings = ("setting", "running", "value", "applied by", "source")
        show_table(rows, tuple((heading.replace(" ", "_"), heading) for heading in headings))
    else:
        show_table(rows, tuple((heading, heading) for heading in ("setting", "default", "value", "source")))


def _running_settings(loaded: Config) -> Item:
    from leveret.cli.remote import Remote
    from leveret.management import control_client

    broker = Remote(partial(control_client.call, loaded.server.data_path), as_json=False)
    settings: Item = broker.call("config.show")["settings"]
    return settings

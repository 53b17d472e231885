"""`leveret doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leveret.cli.config_options import config_file, config_options, load_traced
from leveret.cli.failed import ERROR, Failed
from leveret.cli.output import show_json, text

if TYPE_CHECKING:
    from leveret.cli.checkup.finding import Finding
    from leveret.config import Config


@click.command()
@click.option("--strict", is_flag=True, help="Also fail if there are warnings.")
@config_options
def doctor(config_path: Path | None, settings: tuple[str, ...], as_json: bool, strict: bool) -> None:
    """Check this machine and the configuration for `leveret serve`, and say what to change.

    Exit codes: 0 if nothing must change, 1 if something must, or if there are warnings and --strict is given.
    """
    from leveret.cli.checkup import finding
    from leveret.config import ConfigError

    try:
        config, _ = load_traced(config_path, settings)
    except ConfigError as error:
        raise Failed(str(error)) from None
    findings = list(_check_all(config, config_file(config_path)))
    failing = {finding.ERROR, finding.WARNING} if strict else {finding.ERROR}
    failed = any(found.level in failing for found in findings)
    if as_json:
        show_json({"healthy": not failed, "findings": [asdict(found) for found in findings]})
    else:
        for found in findings:
            click.echo(f"{found.level:<8} {found.check}: {text(found.found)}")
            if found.expected:
                click.echo(f"{'':<8}   expected: {text(found.expected)}")
                click.echo(f"{'':<8}   change:   {text(found.change)}")
    if failed:
        raise SystemExit(ERROR)


def _check_all(config: Config, path: Path | None) -> Iterator[Finding]:
    from leveret.cli.checkup import certificates, disk, machine, network

    running = network.running_broker(config)
    yield from machine.check_software(config)
    yield machine.check_python()
    yield from machine.check_files(config)
    yield from machine.check_memory(config)
    yield from machine.check_clock(config)
    yield from disk.check_directory(config)
    yield from disk.check_secrets(config, path)
    yield from network.check_ports(config, running)
    yield from network.check_guest(config)
    yield from network.check_origins(config)
    yield from certificates.check_tls(config)
    yield from network.check_broker(running)

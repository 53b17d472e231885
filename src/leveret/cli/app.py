"""The commands by name. A new one is a file with a click command and one line here."""

from __future__ import annotations

import importlib

import click

from leveret import __version__, build_info

COMMANDS = {
    "serve": ("leveret.cli.serve:serve", "Run a broker."),
    "check": ("leveret.cli.check:check", "Verify the data directory of a broker that does not run."),
    "status": ("leveret.cli.status:status", "Show how the broker is."),
    "queues": ("leveret.cli.queues:queues", "List, add, delete and purge queues."),
    "streams": ("leveret.cli.streams:streams", "List, inspect and partition streams."),
    "leases": ("leveret.cli.leases:leases", "List and release leases of queues."),
    "stages": ("leveret.cli.stages:stages", "List and give up the stages of sinks."),
    "dtx": ("leveret.cli.dtx:dtx", "List and decide branches of distributed transactions."),
    "staged": ("leveret.cli.staged:staged", "List and give up staged contents of AMQP 0-9."),
    "exchanges": ("leveret.cli.exchanges:exchanges", "List, add and delete exchanges."),
    "bindings": ("leveret.cli.bindings:bindings", "List, add and delete bindings."),
    "connections": ("leveret.cli.connections:connections", "List and close connections."),
    "channels": ("leveret.cli.connections:channels", "List channels."),
    "links": ("leveret.cli.links:links", "List, release and delete links of AMQP 1.0."),
    "consumers": ("leveret.cli.connections:consumers", "List consumers."),
    "users": ("leveret.cli.users:users", "List, add, change and delete users."),
    "vhosts": ("leveret.cli.vhosts:vhosts", "List, add, change and delete vhosts."),
    "permissions": ("leveret.cli.permissions:permissions", "List, set and delete permissions."),
    "publish": ("leveret.cli.publish:publish", "Publish messages."),
    "consume": ("leveret.cli.consume:consume", "Print messages as they come."),
    "get": ("leveret.cli.get:get", "Take messages out of a queue."),
    "purge": ("leveret.cli.purge:purge", "Drop the messages of a queue."),
    "pipeline": ("leveret.cli.pipeline:pipeline", "Run data pipelines on Spark."),
    "bench": ("leveret.cli.bench:bench", "Put load on a broker and measure it."),
}


class _Commands(click.Group):
    """Imports a command's module when the command is used: `leveret serve` starts sooner."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in COMMANDS.items()])


def _show_version(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        click.echo(f"leveret {__version__} ({build_info()})")
        context.exit()


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version,
              help="Show version and build.")
def leveret() -> None:
    """A durable message broker that speaks AMQP.

    `publish`, `consume`, `get`, `purge` and `bench` are clients of any AMQP 0-9-1 broker (--url), and so are pipelines.
    The other commands but `serve` and `check` talk to a running Leveret through its data directory.
    """

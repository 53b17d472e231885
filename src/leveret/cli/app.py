"""The root command. To add a subcommand, write a module with a click command and add a line to `COMMANDS`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from leveret._build import __version__, build_info
from leveret.cli.http_options import URL, http_options

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

RENAMED_COMMANDS: Final = {
    "staged": "uploads",
    "stages": "sink-transactions",
    "stages discard": "sink-transactions abort",
}


def refuse_renamed(arguments: Sequence[str]) -> None:
    """Raise `click.UsageError` if the arguments start with the old name of a command."""
    for name in (" ".join(arguments[:2]), *arguments[:1]):
        if name in RENAMED_COMMANDS:
            raise click.UsageError(f"unknown command '{name}': it was renamed to '{RENAMED_COMMANDS[name]}'")


COMMANDS = {
    "serve": ("leveret.cli.serve:serve", "Run a broker."),
    "check": ("leveret.cli.check:check", "Verify the data directory of a stopped broker."),
    "backup": ("leveret.cli.backup:backup", "Back up a running broker."),
    "restore": ("leveret.cli.backup:restore", "Restore or check a backup."),
    "doctor": ("leveret.cli.doctor:doctor", "Check the machine and the configuration."),
    "config": ("leveret.cli.config:config", "Show, check and compare the configuration."),
    "completion": ("leveret.cli.completion:completion", "Print the completions for a shell."),
    "status": ("leveret.cli.status:status", "Show the state of the broker."),
    "top": ("leveret.cli.top:top", "Watch queues and connections with their rates."),
    "health": ("leveret.cli.health:health", "Check the broker, for container probes."),
    "queues": ("leveret.cli.queues:queues", "List, add, delete and purge queues."),
    "messages": ("leveret.cli.message_files:messages", "Browse, search, move, copy, delete and export messages."),
    "streams": ("leveret.cli.streams:streams", "List, inspect and change streams."),
    "leases": ("leveret.cli.leases:leases", "List and release queue leases."),
    "sink-transactions": ("leveret.cli.sink_transactions:sink_transactions", "List and abort sink transactions."),
    "dtx": ("leveret.cli.dtx:dtx", "List and resolve distributed transaction branches."),
    "uploads": ("leveret.cli.uploads:uploads", "List and discard AMQP 0-9 uploads."),
    "exchanges": ("leveret.cli.exchanges:exchanges", "List, add and delete exchanges."),
    "bindings": ("leveret.cli.bindings:bindings", "List, add and delete bindings."),
    "connections": ("leveret.cli.connections:connections", "List and close connections."),
    "channels": ("leveret.cli.connections:channels", "List channels."),
    "transactions": ("leveret.cli.connections:transactions", "List open transactions."),
    "links": ("leveret.cli.links:links", "List, release and delete AMQP 1.0 links."),
    "consumers": ("leveret.cli.connections:consumers", "List consumers."),
    "users": ("leveret.cli.users:users", "List, add, change and delete users."),
    "audit": ("leveret.cli.audit:audit", "List administrative changes."),
    "log": ("leveret.cli.log:log", "Print and follow the broker's log."),
    "delete-matching": (
        "leveret.cli.delete_matching:delete_matching",
        "Delete all objects of a kind whose names match a pattern.",
    ),
    "vhosts": ("leveret.cli.vhosts:vhosts", "List, add, change and delete vhosts."),
    "shards": ("leveret.cli.shards:shards", "List the shards: the processes that serve the vhosts."),
    "cluster": ("leveret.cli.cluster:cluster", "List the nodes of a cluster, and move shards between them."),
    "policies": ("leveret.cli.policies:policies", "List, set and delete policies."),
    "operator-policies": ("leveret.cli.policies:operator_policies", "List, set and delete operator policies."),
    "parameters": ("leveret.cli.parameters:parameters", "List, set and delete parameters of vhosts."),
    "shovel": ("leveret.cli.shovel:shovel", "List, show and restart shovels, and move queues."),
    "migrate": ("leveret.cli.migrate:migrate", "Migrate from RabbitMQ: definitions, shovels and messages."),
    "global-parameters": ("leveret.cli.parameters:global_parameters", "List, set and delete global parameters."),
    "definitions": ("leveret.cli.definitions:definitions", "Export, import and compare definitions."),
    "permissions": ("leveret.cli.permissions:permissions", "List, set and delete permissions."),
    "roles": ("leveret.cli.roles:roles", "List, grant and revoke roles in management."),
    "topic-permissions": (
        "leveret.cli.topic_permissions:topic_permissions",
        "List, set and clear topic permissions.",
    ),
    "publish": ("leveret.cli.publish:publish", "Publish messages."),
    "consume": ("leveret.cli.consume:consume", "Print messages as they arrive."),
    "get": ("leveret.cli.get:get", "Get messages from a queue."),
    "purge": ("leveret.cli.purge:purge", "Purge a queue."),
    "pipeline": ("leveret.cli.pipeline:pipeline", "Run data pipelines on Spark."),
    "bench": ("leveret.cli.bench:bench", "Benchmark a broker."),
}


_AMQP_CLIENT: Final = "is an AMQP client; give its own --url, amqp:// or amqps://, after the name of the command"
_LOCAL: Final = "has no remote form; run it on the machine of the data directory, without --url"
# The commands that the HTTP API cannot execute, and why.
NOT_REMOTE: Final = {
    **dict.fromkeys(("serve", "check", "backup", "restore", "config", "doctor"), _LOCAL),
    "completion": "has no remote form; it prints a script, so run it without --url",
    **dict.fromkeys(("publish", "consume", "get", "purge", "bench", "pipeline"), _AMQP_CLIENT),
}


# The similarity that a known option must have to an unknown one to be suggested. `click` also suggests less similar ones.
_MIN_SIMILARITY: Final = 0.8


class _Commands(click.Group):
    """Command group that imports the module of a command only when it runs, so that `leveret serve` starts faster."""

    def invoke(self, context: click.Context) -> object:
        try:
            return super().invoke(context)
        except click.NoSuchOption as error:
            import difflib

            near = difflib.get_close_matches(error.option_name, error.possibilities or (), cutoff=_MIN_SIMILARITY)
            raise click.NoSuchOption(error.option_name, possibilities=near, ctx=error.ctx) from None

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        refuse_renamed(arguments)
        name = arguments[0]
        if name not in COMMANDS and not name.startswith("-") and not context.resilient_parsing:
            import difflib

            near = difflib.get_close_matches(name, COMMANDS)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise click.UsageError(f"unknown command '{name}'{hint}", context)
        return super().resolve_command(context, arguments)

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        commands = [CompletionItem(name, help=help) for name, (_, help) in COMMANDS.items() if name.startswith(incomplete)]
        return commands + click.Command.shell_complete(self, context, incomplete)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in COMMANDS.items()])


def _show_version(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        click.echo(f"leveret {__version__} ({build_info()})")
        context.exit()


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@http_options
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version and exit."
)
@click.pass_context
def leveret(context: click.Context) -> None:
    """A durable message broker that speaks AMQP.

    `publish`, `consume`, `get`, `purge`, `bench` and `pipeline` work with any AMQP 0-9-1 broker (--url). `serve`, `check`,
    `backup`, `restore`, `config` and `doctor` run on the machine of the broker. The other commands manage a running broker:
    through the control socket in its data directory, or from another machine through its HTTP API
    (`leveret --url https://user:password@host:15671 status`).
    """
    if URL in context.meta and context.invoked_subcommand in NOT_REMOTE:
        raise click.UsageError(f"`leveret {context.invoked_subcommand}` {NOT_REMOTE[context.invoked_subcommand]}")

"""`leveret policies` and `leveret operator-policies`."""

from __future__ import annotations

import click

from leveret.broker.policies import ALL, QUEUES, TARGETS
from leveret.cli.listing import listing
from leveret.cli.options import together
from leveret.cli.remote import current, in_vhost_option, remote_options, vhost_option
from leveret.cli.tables import read_object

COLUMNS = (
    ("vhost", "vhost"),
    ("name", "name"),
    ("pattern", "pattern"),
    ("apply-to", "apply to"),
    ("definition", "definition"),
    ("priority", "priority"),
)

_arguments = together(
    click.argument("name"),
    click.argument("pattern"),
    click.argument("definition"),
    in_vhost_option,
    click.option(
        "--priority", type=int, default=0, show_default=True, help="The highest of the matching policies applies."
    ),
)


def _set(call: str, noun: str, name: str, pattern: str, definition: str, vhost: str, priority: int, apply_to: str) -> None:
    current().call(
        call,
        name=name,
        pattern=pattern,
        definition=read_object(definition, "DEFINITION"),
        vhost=vhost,
        priority=priority,
        **{"apply-to": apply_to},
    )
    click.echo(f"set {noun} '{name}'")


@listing("List, set and delete policies: settings of queues and exchanges by name patterns.", vhost_option)
def policies(vhost: str | None) -> None:
    """List policies."""
    current().show_list("policies.list", COLUMNS, ("vhost", "name"), vhost=vhost)


@policies.command("set")
@_arguments
@click.option("--apply-to", type=click.Choice(TARGETS), default=ALL, show_default=True, help="What the policy applies to.")
@remote_options
def set_policy(name: str, pattern: str, definition: str, vhost: str, priority: int, apply_to: str) -> None:
    """Add or replace the policy NAME.

    PATTERN is a regular expression for the names of queues and exchanges. DEFINITION is JSON, such as
    '{"max-length": 1000}'.
    """
    _set("policies.set", "policy", name, pattern, definition, vhost, priority, apply_to)


@policies.command("delete")
@click.argument("name")
@in_vhost_option
@remote_options
def delete_policy(name: str, vhost: str) -> None:
    """Delete a policy."""
    current().call("policies.delete", name=name, vhost=vhost)
    click.echo(f"deleted policy '{name}'")


@listing("List, set and delete operator policies: upper limits of what policies and arguments allow.", vhost_option)
def operator_policies(vhost: str | None) -> None:
    """List operator policies."""
    current().show_list("operator_policies.list", COLUMNS, ("vhost", "name"), vhost=vhost)


@operator_policies.command("set")
@_arguments
@click.option(
    "--apply-to", type=click.Choice(TARGETS), default=QUEUES, show_default=True, help="What the policy applies to."
)
@remote_options
def set_operator_policy(name: str, pattern: str, definition: str, vhost: str, priority: int, apply_to: str) -> None:
    """Add or replace the operator policy NAME.

    PATTERN is a regular expression for the names of queues. DEFINITION is JSON, such as '{"max-length": 1000}'.
    """
    _set("operator_policies.set", "operator policy", name, pattern, definition, vhost, priority, apply_to)


@operator_policies.command("delete")
@click.argument("name")
@in_vhost_option
@remote_options
def delete_operator_policy(name: str, vhost: str) -> None:
    """Delete an operator policy."""
    current().call("operator_policies.delete", name=name, vhost=vhost)
    click.echo(f"deleted operator policy '{name}'")

"""`leveret parameters` and `leveret global-parameters`."""

from __future__ import annotations

import click

from leveret.broker.parameters import COMPONENTS
from leveret.cli.listing import listing
from leveret.cli.remote import current, in_vhost_option, remote_options, vhost_option
from leveret.cli.tables import read_json

COLUMNS = (
    ("vhost", "vhost"),
    ("component", "component"),
    ("name", "name"),
    ("value", "value"),
)
GLOBAL_COLUMNS = (("name", "name"), ("value", "value"))

_component = click.argument("component", metavar="COMPONENT")


@listing(
    f"List, set and delete parameters of vhosts. Components: {', '.join(COMPONENTS)}.",
    vhost_option,
    click.option("--component", help="Only this component."),
)
def parameters(vhost: str | None, component: str | None) -> None:
    """List parameters."""
    current().show_list("parameters.list", COLUMNS, ("vhost", "component", "name"), vhost=vhost, component=component)


@parameters.command("set")
@_component
@click.argument("name")
@click.argument("value")
@in_vhost_option
@remote_options
def set_parameter(component: str, name: str, value: str, vhost: str) -> None:
    """Add or replace the parameter NAME of COMPONENT. VALUE is JSON."""
    current().call("parameters.set", component=component, name=name, value=read_json(value, "VALUE"), vhost=vhost)
    click.echo(f"set parameter '{name}' of component '{component}'")


@parameters.command("delete")
@_component
@click.argument("name")
@in_vhost_option
@remote_options
def delete_parameter(component: str, name: str, vhost: str) -> None:
    """Delete a parameter."""
    current().call("parameters.delete", component=component, name=name, vhost=vhost)
    click.echo(f"deleted parameter '{name}' of component '{component}'")


@listing("List, set and delete global parameters, which belong to no vhost.")
def global_parameters() -> None:
    """List global parameters."""
    current().show_list("global_parameters.list", GLOBAL_COLUMNS, ("name",))


@global_parameters.command("set")
@click.argument("name")
@click.argument("value")
@remote_options
def set_global_parameter(name: str, value: str) -> None:
    """Add or replace a global parameter. VALUE is JSON."""
    current().call("global_parameters.set", name=name, value=read_json(value, "VALUE"))
    click.echo(f"set global parameter '{name}'")


@global_parameters.command("delete")
@click.argument("name")
@remote_options
def delete_global_parameter(name: str) -> None:
    """Delete a global parameter."""
    current().call("global_parameters.delete", name=name)
    click.echo(f"deleted global parameter '{name}'")

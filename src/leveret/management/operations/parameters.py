"""Parameters of vhosts, and global parameters: list, show, set, delete."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET, UnsetType

from leveret.broker.parameters import SHOVEL, Setter, Value, prepare
from leveret.broker.vhost import Vhost
from leveret.management.json_values import ClientTable, ReplyValue
from leveret.management.operations.operation import Applied, Context, Operation, Operations
from leveret.management.operations.policies import Stored
from leveret.management.roles import check_parameter
from leveret.management.structs import InVhost, Named, NamedInVhost, Reply, Request, check_value
from leveret.security import roles


class Parameters(InVhost, kw_only=True):
    """Request for a list of parameters: of one component, or of all if None."""

    component: str | None = None


class OneParameter(NamedInVhost, kw_only=True):
    """Request about one parameter."""

    component: str


class SetParameter(OneParameter, kw_only=True):
    """Request to add or replace a parameter.

    Attributes:
        user: The user with whose permissions a shovel acts; None for the caller, "" for none.
    """

    value: Value
    user: str | None = None

    def __post_init__(self) -> None:
        check_value("value", self.value)


class SetGlobalParameter(Named, kw_only=True):
    """Request to add or replace a global parameter."""

    value: Value

    def __post_init__(self) -> None:
        check_value("value", self.value)


class GlobalParameters(Request, kw_only=True):
    """Request for a list of global parameters: of those whose names have a prefix."""

    prefix: str = ""


def setter_of(context: Context, request: SetParameter) -> Setter:
    """Return the user whom a parameter is stored with."""
    return context.principal.setter if request.user is None else Setter(request.user)


class ParameterInfo(Reply, kw_only=True):
    """A parameter of a vhost.

    Attributes:
        user: The user with whose permissions a shovel acts; "" if it is unknown. Absent for an operator.
    """

    vhost: str
    component: str
    name: str
    value: Value
    user: str | UnsetType = UNSET


class GlobalParameterInfo(Reply, kw_only=True):
    """A global parameter."""

    name: str
    value: Value


def _json(value: Value) -> ReplyValue:
    """Return a value that the reply encodes: a table of an operator may have any names."""
    return ClientTable(value) if isinstance(value, dict) else value


def list_parameters(context: Context, request: Parameters) -> Iterator[ParameterInfo]:
    """List parameters, including operator policies."""
    found = [
        _info(vhost, component, name, value)
        for vhost in context.vhosts(request.vhost)
        for component, name, value in vhost.parameters.items()
        if request.component in (None, component)
    ]
    return iter(found)


def show_parameter(context: Context, request: OneParameter) -> ParameterInfo:
    """Return a parameter."""
    vhost = context.vhost(request.vhost)
    return _info(vhost, request.component, request.name, vhost.parameters.get(request.component, request.name))


def _info(vhost: Vhost, component: str, name: str, value: Value) -> ParameterInfo:
    setter = vhost.parameters.setter(component, name)
    has_user = component == SHOVEL and not setter.is_operator
    return ParameterInfo(
        vhost=vhost.name, component=component, name=name, value=_json(value), user=setter.user if has_user else UNSET
    )


async def set_parameter(context: Context, request: SetParameter) -> Stored:
    """Add or replace a parameter. Returns when it is applied.

    A shovel with the same value keeps its user and runs on, unless the request names a user.
    """
    await prepare(context.broker, request.component)
    parameters = context.vhost(request.vhost).parameters
    if request.user is None and parameters.is_unchanged(request.component, request.name, request.value):
        return Stored(created=False)
    applied = Applied()
    created = parameters.set(request.component, request.name, request.value, applied.done, setter_of(context, request))
    await applied.future
    return Stored(created=created)


async def delete_parameter(context: Context, request: OneParameter) -> None:
    """Delete a parameter. Returns when that is applied."""
    applied = Applied()
    context.vhost(request.vhost).parameters.delete(request.component, request.name, applied.done)
    await applied.future


def list_global_parameters(context: Context, request: GlobalParameters) -> Iterator[GlobalParameterInfo]:
    """List global parameters."""
    values = context.broker.global_parameters.values
    found = sorted(name for name in values if name.startswith(request.prefix))
    return (GlobalParameterInfo(name=name, value=_json(values[name])) for name in found if name in values)


def show_global_parameter(context: Context, request: Named) -> GlobalParameterInfo:
    """Return a global parameter."""
    return GlobalParameterInfo(name=request.name, value=_json(context.broker.global_parameters.get(request.name)))


async def set_global_parameter(context: Context, request: SetGlobalParameter) -> Stored:
    """Add or replace a global parameter. That of roles is checked."""
    if request.name == roles.PARAMETER:
        await context.managed.in_thread(lambda: check_parameter(request.value))
    return Stored(created=context.broker.global_parameters.set(request.name, request.value))


def delete_global_parameter(context: Context, request: Named) -> None:
    """Delete a global parameter."""
    context.broker.global_parameters.delete(request.name)


OPERATIONS: Operations = {
    "parameters.list": Operation(list_parameters, Parameters, ParameterInfo),
    "parameters.show": Operation(show_parameter, OneParameter, ParameterInfo),
    "parameters.set": Operation(set_parameter, SetParameter, Stored, changes=True),
    "parameters.delete": Operation(delete_parameter, OneParameter, changes=True),
    "global_parameters.list": Operation(list_global_parameters, GlobalParameters, GlobalParameterInfo),
    "global_parameters.show": Operation(show_global_parameter, Named, GlobalParameterInfo),
    "global_parameters.set": Operation(set_global_parameter, SetGlobalParameter, Stored, changes=True),
    "global_parameters.delete": Operation(delete_global_parameter, Named, changes=True),
}

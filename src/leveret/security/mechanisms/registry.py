"""The mechanisms by name."""

from __future__ import annotations

from collections.abc import Sequence

from leveret.security.mechanisms.amqplain import Amqplain
from leveret.security.mechanisms.anonymous import Anonymous
from leveret.security.mechanisms.base import Context, Mechanism
from leveret.security.mechanisms.external import External
from leveret.security.mechanisms.plain import Plain

MECHANISMS: dict[str, type[Mechanism]] = {
    Plain.name: Plain,
    Amqplain.name: Amqplain,
    External.name: External,
    Anonymous.name: Anonymous,
}


def offered(enabled: Sequence[str], context: Context) -> list[str]:
    """The mechanisms to offer on a connection, of those that the configuration enables, in its order."""
    return [name for name in enabled if MECHANISMS[name].available(context)]


def create(name: str, enabled: Sequence[str], context: Context) -> Mechanism | None:
    """The mechanism that the client chose; None where it was not offered."""
    return MECHANISMS[name](context) if name in offered(enabled, context) else None

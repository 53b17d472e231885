"""The mechanisms by name."""

from __future__ import annotations

from collections.abc import Sequence

from leveret.security.mechanisms.amqplain import Amqplain
from leveret.security.mechanisms.anonymous import Anonymous
from leveret.security.mechanisms.base import Context, Mechanism
from leveret.security.mechanisms.external import External
from leveret.security.mechanisms.plain import Plain
from leveret.security.mechanisms.scram import ScramSha256, ScramSha512
from leveret.security.scram import KEY_BYTES

MECHANISMS: dict[str, type[Mechanism]] = {
    ScramSha512.name: ScramSha512,
    ScramSha256.name: ScramSha256,
    Plain.name: Plain,
    Amqplain.name: Amqplain,
    External.name: External,
    Anonymous.name: Anonymous,
}


# Mechanisms that send the password. A login with one of them creates missing SCRAM keys.
PASSWORD_MECHANISMS = (Plain.name, Amqplain.name)


def offered(enabled: Sequence[str], context: Context) -> list[str]:
    """Return the enabled mechanisms to offer on a connection, in the order of the configuration.

    SCRAM is not offered if it would lock out users: a client that prefers it would not try another mechanism.
    """
    names = [name for name in enabled if MECHANISMS[name].available(context)]
    if not context.scram_ready and any(name in names for name in PASSWORD_MECHANISMS):
        names = [name for name in names if name not in KEY_BYTES]
    return names


def create(name: str, names: Sequence[str], context: Context) -> Mechanism | None:
    """Create the mechanism that the client chose. Returns None if the server did not offer it."""
    return MECHANISMS[name](context) if name in names and MECHANISMS[name].available(context) else None

"""Logins by SCRAM, over both protocols."""

from __future__ import annotations

import pytest
from scramp import ScramMechanism

from leveret.client import AuthenticationFailed, Parameters
from leveret.client.engine.common.login import MAX_ITERATIONS, Login
from leveret.client.parameters import SCRAM
from tests.client.conftest import Connect
from tests.support.broker import Broker


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize("protocol", ["0-9-1", "1.0"])
async def test_scram(connect: Connect, server: Broker, protocol: str, mechanism: str) -> None:
    if server.kind != "leveret":
        with pytest.raises(AuthenticationFailed, match=mechanism):
            await connect(mechanism=mechanism)
        return
    connection = await connect.open(protocol, mechanism=mechanism)
    async with connection.open_channel() as channel:
        assert channel.is_open
    with pytest.raises(AuthenticationFailed):
        await connect.open(protocol, mechanism=mechanism, password="wrong")
    with pytest.raises(AuthenticationFailed):
        await connect.open(protocol, mechanism=mechanism, user="unknown")


def exchange(mechanism: str) -> tuple[Login, str]:
    """Run a login up to the server's final message, and return both."""
    scram = ScramMechanism(mechanism)
    salt, stored, key, rounds = scram.make_auth_info("secret", iteration_count=4096)
    server = scram.make_server(lambda name: (salt, stored, key, rounds))
    login = Login(Parameters(mechanism=mechanism, user="me", password="secret"))
    server.set_client_first(login.first().decode())
    server.set_client_final(login.respond(server.get_server_first().encode()).decode())
    final: str = server.get_server_final()
    return login, final


@pytest.mark.parametrize("mechanism", SCRAM)
def test_server_must_prove_that_it_knows_the_password(mechanism: str) -> None:
    login, final = exchange(mechanism)
    login.done(final.encode())
    login, final = exchange(mechanism)
    assert login.respond(final.encode()) == b""
    login.done()
    login, _ = exchange(mechanism)
    with pytest.raises(AuthenticationFailed, match="did not prove"):
        login.done()
    _, other = exchange(mechanism)
    login, _ = exchange(mechanism)
    with pytest.raises(AuthenticationFailed, match="wrong"):
        login.done(other.encode())


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"\xff",
        b"r=short,s=c2FsdA==,i=4096",
        f"r=x,s=c2FsdA==,i={MAX_ITERATIONS + 1}".encode(),
    ],
    ids=["empty", "no-text", "nonce", "rounds"],
)
def test_invalid_challenges(challenge: bytes) -> None:
    login = Login(Parameters(mechanism="SCRAM-SHA-256", user="me", password="secret"))
    login.first()
    with pytest.raises(AuthenticationFailed, match="SCRAM-SHA-256"):
        login.respond(challenge)

"""Parameters: SASL responses that servers accept, and TLS contexts."""

from __future__ import annotations

import copy
import pickle
import ssl
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.client.errors import InvalidUrl, TlsFailed
from leveret.client.parameters import Parameters
from leveret.security.mechanisms import Context, NeedsPassword, Success, create
from leveret.wire.amqp0.dialects import RABBITMQ
from leveret.wire.amqp0.fieldtable import decode_table
from tests.security.certificates import Authority

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=300)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@given(st.sampled_from(["PLAIN", "AMQPLAIN"]), texts.filter(bool), texts)
def test_servers_accept_the_credentials(mechanism: str, user: str, password: str) -> None:
    name, response = Parameters(mechanism=mechanism, user=user, password=password).sasl()
    server = create(name, [mechanism], Context(decode_table=lambda data: decode_table(data, 0, len(data), RABBITMQ)))
    assert server is not None
    assert server.step(response) == NeedsPassword(user, password.encode())


def test_amqplain_omits_the_table_length() -> None:
    assert Parameters(mechanism="AMQPLAIN", user="u", password="pw").sasl() == (
        "AMQPLAIN",
        b"\x05LOGINS\0\0\0\x01u\x08PASSWORDS\0\0\0\x02pw",
    )
    assert Parameters(mechanism="AMQPLAIN", password="a\0b").sasl()[1].endswith(b"a\0b")


def test_mechanisms_without_a_password() -> None:
    certificate = {"subject": ((("commonName", "ann"),),)}
    for mechanism, user in (("EXTERNAL", "ann"), ("ANONYMOUS", "anonymous")):
        name, response = Parameters(mechanism=mechanism).sasl()
        server = create(name, [mechanism], Context(certificate=certificate, anonymous_user="anonymous"))
        assert server is not None
        assert server.step(response) == Success(user)


def test_parameters_are_immutable() -> None:
    properties: dict[str, Any] = {"team": "a"}
    parameters = Parameters(client_properties=properties)
    properties["team"] = "b"
    assert parameters.client_properties == {"team": "a"}
    with pytest.raises(FrozenInstanceError):
        parameters.host = "other"  # type: ignore[misc]
    assert replace(parameters, host="other", port=0).host == "other"
    assert len({parameters, copy.copy(parameters), Parameters()}) == 2
    assert pickle.loads(pickle.dumps(parameters)) == parameters


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "localhost"),
        ({"host": "rabbit"}, "rabbit"),
        ({"host": "fe80::1%eth0"}, "fe80::1"),
        ({"host": "10.0.0.1", "server_name": "rabbit", "tls": True}, "rabbit"),
    ],
)
def test_tls_name(options: dict[str, Any], name: str) -> None:
    assert Parameters(**options).tls_name == name


# TLS


def connect(authority: Authority, parameters: Parameters, verify: ssl.VerifyMode = ssl.CERT_NONE) -> ssl.SSLObject:
    """Run a handshake in memory with a server for localhost, and return the server's end."""
    certificate, key = authority.issue("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(authority.path)
    context.verify_mode = verify
    ours = parameters.tls_context()
    assert ours is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    ends = [ours.wrap_bio(to_client, to_server, server_hostname=parameters.tls_name), server]
    for _ in range(10):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
    return server


def test_no_context_without_tls() -> None:
    assert Parameters().tls_context() is None


def test_server_is_verified(authority: Authority, tmp_path: Path) -> None:
    trusting = Parameters(tls=True, cafile=str(authority.path))
    assert connect(authority, trusting).version() == "TLSv1.3"
    assert connect(authority, replace(trusting, host="rabbit", server_name="localhost")).version() == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match="rabbit"):
        connect(authority, replace(trusting, host="rabbit"))
    other = Authority(tmp_path, "other")
    for untrusting in (Parameters(tls=True), Parameters(tls=True, cafile=str(other.path))):
        with pytest.raises(ssl.SSLCertVerificationError):
            connect(authority, untrusting)
        assert connect(authority, replace(untrusting, verify=False, host="rabbit")).version() == "TLSv1.3"


@pytest.mark.parametrize("password", ["", "secret"])
@pytest.mark.parametrize("joined", [False, True])
def test_client_certificate_is_sent(authority: Authority, tmp_path: Path, password: str, joined: bool) -> None:
    certificate, key = authority.issue("ann", password=password.encode())
    if joined:
        both = tmp_path / "both.pem"
        both.write_bytes(certificate.read_bytes() + key.read_bytes())
        files: dict[str, Any] = {"certfile": str(both)}
    else:
        files = {"certfile": str(certificate), "keyfile": str(key)}
    parameters = Parameters(tls=True, cafile=str(authority.path), keypassword=password, mechanism="EXTERNAL", **files)
    shown = connect(authority, parameters, ssl.CERT_REQUIRED).getpeercert()
    assert shown is not None
    assert shown["subject"] == ((("commonName", "ann"),),)


def test_unusable_files(authority: Authority, tmp_path: Path) -> None:
    certificate, key = (str(path) for path in authority.issue("bob", password=b"secret"))
    other = str(authority.issue("other")[1])
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    missing = str(tmp_path / "missing.pem")
    options: list[tuple[dict[str, Any], str]] = [
        ({"cafile": missing}, "option cafile: .*missing.pem.*No such file"),
        ({"cafile": str(text)}, "option cafile: .*text.pem.*expected certificates in PEM"),
        ({"cafile": str(tmp_path)}, "option cafile: "),
        ({"cafile": "a\0b"}, "option cafile: .*null"),
        ({"certfile": missing}, "options certfile and keyfile: .*missing.pem.*No such file"),
        ({"certfile": str(text)}, "options certfile and keyfile: .*text.pem"),
        ({"certfile": certificate}, "options certfile and keyfile: .*expected a certificate and its key in PEM"),
        ({"certfile": certificate, "keyfile": other}, "options certfile and keyfile: .*KEY_VALUES_MISMATCH"),
        ({"certfile": certificate, "keyfile": key}, "password is missing or wrong .option keypassword"),
        ({"certfile": certificate, "keyfile": key, "keypassword": "other"}, "password is missing or wrong"),
        ({"certfile": certificate, "keyfile": key, "keypassword": "x" * 2000}, "password"),
    ]
    for files, complaint in options:
        parameters = Parameters(host="rabbit", tls=True, **files)
        with pytest.raises(TlsFailed, match=complaint) as caught:
            parameters.tls_context()
        assert (caught.value.host, caught.value.port) == ("rabbit", 5671)


def test_replaced_files_take_effect(authority: Authority, tmp_path: Path) -> None:
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(Authority(tmp_path, "old").path.read_bytes())
    parameters = Parameters(tls=True, cafile=str(trusted))
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(authority, parameters)
    trusted.write_bytes(authority.path.read_bytes())
    assert connect(authority, parameters).version() == "TLSv1.3"


def test_values_are_checked() -> None:
    with pytest.raises(InvalidUrl, match="option heartbeat"):
        Parameters(heartbeat=-1)
    with pytest.raises(InvalidUrl, match="option heartbeat"):
        replace(Parameters(), heartbeat=70000)

"""Values of connections: mechanisms and TLS sessions, and that RabbitMQ has the same."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from leveret import sync
from tests.management.http.client import HttpApi, HttpBroker, HttpRabbit
from tests.management.http.test_health import ENVIRONMENT
from tests.security.certificates import Authority
from tests.support.broker import LeveretProcess, basic_config, free_port
from tests.support.polling import wait_until
from tests.support.rabbitmq import RabbitProcess, available

# Ciphers of TLS 1.2, which OpenSSL's name describes, and those of TLS 1.3, which has no key exchange in them.
SESSIONS = {
    ("TLSv1_2", "ECDHE-ECDSA-AES256-GCM-SHA384"): ("tlsv1.2", "ecdhe_ecdsa", "aes_256_gcm", "aead"),
    ("TLSv1_2", "ECDHE-ECDSA-CHACHA20-POLY1305"): ("tlsv1.2", "ecdhe_ecdsa", "chacha20_poly1305", "aead"),
    ("TLSv1_2", "ECDHE-ECDSA-AES128-SHA256"): ("tlsv1.2", "ecdhe_ecdsa", "aes_128_cbc", "sha256"),
    ("TLSv1_3", ""): ("tlsv1.3", "any", "aes_256_gcm", "aead"),
}
MECHANISMS = ["EXTERNAL", "SCRAM-SHA-256", "PLAIN", "AMQPLAIN", "ANONYMOUS"]
WITHOUT_TLS = dict.fromkeys(("ssl_protocol", "ssl_key_exchange", "ssl_cipher", "ssl_hash"))
WITHOUT_CERTIFICATE = dict.fromkeys(("peer_cert_subject", "peer_cert_issuer", "peer_cert_validity"))
SUBJECT = [(NameOID.ORGANIZATION_NAME, "Shop, Inc."), (NameOID.COMMON_NAME, "guest")]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> tuple[Path, Path]:
    return authority.issue("client", SUBJECT)


@pytest.fixture(scope="module")
def leveret(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[tuple[HttpApi, int, int]]:
    """A broker with all mechanisms: its API, its port, and that for TLS."""
    cert, key = authority.issue("server")
    port = free_port()
    config = (
        f"{basic_config()}[management]\nport = 0\n"
        f'[tls]\nport = {port}\ncert = "{cert}"\nkey = "{key}"\nca = "{authority.path}"\nverify = "optional"\n'
        f'[auth]\nmechanisms = {MECHANISMS}\nanonymous_user = "guest"\n'
        '[amqp10]\nanonymous_user = "guest"\n'
    )
    process = LeveretProcess(tmp_path_factory.mktemp("values"), config=config, environment=ENVIRONMENT)
    with process.start():
        yield HttpBroker(process), process.port, port


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[tuple[HttpApi, int, int]]:
    if not available():
        pytest.skip("rabbitmq-server is not installed")
    cert, key = authority.issue("server")
    port, management = free_port(), free_port()
    settings = (
        f"management.tcp.port = {management}\nmanagement.tcp.ip = 127.0.0.1\ncollect_statistics_interval = 500\n"
        f"listeners.ssl.default = 127.0.0.1:{port}\n"
        f"ssl_options.certfile = {cert}\nssl_options.keyfile = {key}\nssl_options.cacertfile = {authority.path}\n"
        "ssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = false\n"
        "ssl_options.versions.1 = tlsv1.3\nssl_options.versions.2 = tlsv1.2\n"
        "auth_mechanisms.1 = EXTERNAL\nauth_mechanisms.2 = PLAIN\nauth_mechanisms.3 = AMQPLAIN\n"
        "ssl_cert_login_from = common_name\n"
    )
    plugins = ("rabbitmq_management", "rabbitmq_auth_mechanism_ssl")
    process = RabbitProcess(tmp_path_factory.mktemp("rabbit"), plugins, settings)
    with process.start():
        yield HttpRabbit(management), process.port, port


def values(api: HttpApi, name: str) -> dict[str, Any]:
    """Return the connection with a name that its client has chosen, in the list and as an object."""

    def found() -> dict[str, Any] | None:
        rows = [row for row in api.get("/connections") if row.get("client_properties", {}).get("connection_name") == name]
        return rows[0] if rows and rows[0].get("auth_mechanism") else None

    listed: dict[str, Any] = wait_until(found, f"connection {name}")
    shown = api.get(f"/connections/{quote(listed['name'])}")
    for key in listed:
        if key.startswith(("ssl", "peer_cert", "auth")):
            assert (shown[key] or None) == (listed[key] or None), key  # RabbitMQ has "" in one of them
    return listed


def check_mechanism(broker: tuple[HttpApi, int, int], mechanism: str) -> None:
    api, port, _ = broker
    name = f"mechanism {mechanism}"
    url = f"amqp://guest:guest@127.0.0.1:{port}"
    with sync.connect(url, mechanism=mechanism, name=name, frame_max=8192, heartbeat=17):
        expected = {
            "auth_mechanism": mechanism,
            "ssl": False,
            "frame_max": 8192,
            "timeout": 17,
            "protocol": "AMQP 0-9-1",
            "user": "guest",
            "send_pend": 0,
            **WITHOUT_TLS,
            **WITHOUT_CERTIFICATE,
        }
        found = values(api, name)
        assert {key: found[key] for key in expected} == expected


def check_tls(
    broker: tuple[HttpApi, int, int], session: tuple[str, str], authority: Authority, certificate: tuple[Path, Path] | None
) -> None:
    api, _, port = broker
    version, cipher = session
    context = ssl.create_default_context(cafile=str(authority.path))
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    if cipher:
        context.set_ciphers(cipher)
    expected: dict[str, Any] = {"ssl": True, **dict(zip(WITHOUT_TLS, SESSIONS[session], strict=True))}
    if certificate is None:
        expected |= {"auth_mechanism": "PLAIN", **WITHOUT_CERTIFICATE}
    else:
        context.load_cert_chain(*certificate)
        issued = x509.load_pem_x509_certificate(certificate[0].read_bytes())
        moments = (issued.not_valid_before_utc, issued.not_valid_after_utc)
        expected |= {
            "auth_mechanism": "EXTERNAL",
            "peer_cert_subject": r"CN=guest,O=Shop\, Inc.",
            "peer_cert_issuer": "CN=authority",
            "peer_cert_validity": " - ".join(moment.strftime("%Y-%m-%dT%H:%M:%SZ") for moment in moments),
        }
    name = f"tls {version} {cipher}"
    url = f"amqps://guest:guest@localhost:{port}"
    with sync.connect(url, tls=context, name=name, mechanism=expected["auth_mechanism"]):
        found = values(api, name)
        assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN", "SCRAM-SHA-256", "ANONYMOUS"])
def test_mechanism(leveret: tuple[HttpApi, int, int], mechanism: str) -> None:
    check_mechanism(leveret, mechanism)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "ANONYMOUS"])
def test_mechanism_over_amqp10(leveret: tuple[HttpApi, int, int], mechanism: str) -> None:
    api, port, _ = leveret
    url = f"amqp://guest:guest@127.0.0.1:{port}"
    with sync.connect(url, protocol="1.0", mechanism=mechanism):
        (row,) = wait_until(
            lambda: [row for row in api.get("/connections") if row["protocol"] == "AMQP 1-0"], "the connection"
        )
        assert row["auth_mechanism"] == mechanism
    wait_until(lambda: not [row for row in api.get("/connections") if row["protocol"] == "AMQP 1-0"], "its end")


@pytest.mark.parametrize("session", SESSIONS)
def test_tls(
    leveret: tuple[HttpApi, int, int], session: tuple[str, str], authority: Authority, certificate: tuple[Path, Path]
) -> None:
    check_tls(leveret, session, authority, certificate if session[0] == "TLSv1_3" else None)


def check_churn(broker: tuple[HttpApi, int, int]) -> None:
    api, port, _ = broker

    def churn() -> dict[str, int]:
        rates = api.get("/overview").get("churn_rates", {})
        names = ("connection_created", "channel_created", "queue_created", "queue_declared", "queue_deleted")
        return {name: rates.get(name, 0) for name in names}

    before = churn()
    for number in range(3):
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
            for _ in range(2):
                channel = connection.channel()
                channel.queue_declare(f"churn.{number}")
                channel.queue_declare(f"churn.{number}")
                channel.queue_declare(f"churn.{number}", passive=True)
                channel.queue_delete(f"churn.{number}")
                channel.close()
    expected = {
        "connection_created": 3,
        "channel_created": 6,
        "queue_created": 6,
        "queue_declared": 12,
        "queue_deleted": 6,
    }
    wait_until(
        lambda: {name: value - before[name] for name, value in churn().items()} == expected, lambda: (before, churn())
    )


def test_churn_counts_objects_of_less_than_a_second(leveret: tuple[HttpApi, int, int]) -> None:
    check_churn(leveret)


@pytest.mark.slow
def test_churn_of_rabbitmq(rabbit: tuple[HttpApi, int, int]) -> None:
    check_churn(rabbit)


def test_lists_show_a_connection_and_channel_that_are_open(leveret: tuple[HttpApi, int, int]) -> None:
    api, port, _ = leveret
    for number in range(5):
        properties = {"connection_name": f"seen {number}"}
        parameters = pika.ConnectionParameters("127.0.0.1", port, client_properties=properties)
        api.get("/connections")  # which is fresh
        with pika.BlockingConnection(parameters) as connection:
            found = [row["user_provided_name"] for row in api.get("/connections")]
            assert f"seen {number}" in found
            channel = connection.channel(7)
            assert 7 in [row["number"] for row in api.get("/channels")]
            channel.close()
            assert 7 not in [row["number"] for row in api.get("/channels")]


def test_enabled_mechanisms(leveret: tuple[HttpApi, int, int]) -> None:
    (node,) = leveret[0].get("/nodes")
    enabled = {row["name"]: row["enabled"] for row in node["auth_mechanisms"]}
    assert enabled == {**dict.fromkeys(MECHANISMS, True), "SCRAM-SHA-512": False}


def test_output_that_a_client_does_not_read(leveret: tuple[HttpApi, int, int]) -> None:
    api, port, _ = leveret
    url = f"amqp://guest:guest@127.0.0.1:{port}"
    properties = {"connection_name": "slow"}
    slow = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, client_properties=properties))
    channel = slow.channel()
    channel.queue_declare("slow", exclusive=True)
    channel.basic_consume("slow", lambda *_: None, auto_ack=True)
    with sync.connect(url) as connection:
        connection.channel().publish(bytes(30_000_000), routing_key="slow")
        wait_until(lambda: values(api, "slow")["send_pend"] > 0, "the unwritten bytes")
    slow.process_data_events(0)
    slow.close()


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
def test_mechanism_of_rabbitmq(rabbit: tuple[HttpApi, int, int], mechanism: str) -> None:
    check_mechanism(rabbit, mechanism)


@pytest.mark.slow
@pytest.mark.parametrize("session", SESSIONS)
def test_tls_of_rabbitmq(
    rabbit: tuple[HttpApi, int, int], session: tuple[str, str], authority: Authority, certificate: tuple[Path, Path]
) -> None:
    check_tls(rabbit, session, authority, certificate if session[0] == "TLSv1_3" else None)

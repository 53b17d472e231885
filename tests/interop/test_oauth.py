"""Logins with tokens of a real OpenID provider, over every protocol and with real clients."""

from __future__ import annotations

import base64
import http.client
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import (
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from leveret import sync
from leveret.client import AuthenticationFailed, Error
from leveret.config import ConfigError, load_config
from tests.support.broker import LeveretProcess, basic_config, leveret_only
from tests.support.oidc import OidcProvider, run_provider
from tests.support.polling import wait_until

ALL = "leveret.read:*/* leveret.write:*/* leveret.configure:*/*"
REFUSED = ProbableAuthenticationError
# Lifetime in seconds of a token that expires during the test, and is valid until a busy machine has logged in.
BRIEF = 4


@pytest.fixture(scope="module")
def provider() -> Iterator[OidcProvider]:
    pytest.importorskip("joserfc", reason="the extra leveret[oauth] is not installed")
    leveret_only("OAuth 2")
    with run_provider() as running:
        yield running


@pytest.fixture(scope="module")
def process(provider: OidcProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    settings = provider.config(
        'algorithms = ["RS256", "ES256"]',
        "clock_skew = 0",
        'username_claims = ["preferred_username", "sub"]',
        'additional_scopes_key = ["realm_access.roles"]',
        'scope_aliases.operators.scopes = ["leveret.tag:administrator", "leveret.read:*/*"]',
    )
    config = basic_config() + settings + "[management]\nport = 0\nrefused_logins = 0\n"
    started = LeveretProcess(
        tmp_path_factory.mktemp("oauth"), config=config, environment={"LEVERET_MANAGEMENT__ENABLED": "true"}
    )
    with started.start():
        yield started


@pytest.fixture
def broker(process: LeveretProcess) -> Iterator[LeveretProcess]:
    yield process
    process.check_log()


Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def connect(broker: LeveretProcess) -> Iterator[Connect]:
    opened: list[pika.BlockingConnection] = []

    def connect(token: str, user: str = "", vhost: str = "/") -> pika.BlockingConnection:
        credentials = pika.PlainCredentials(user, token)
        parameters = pika.ConnectionParameters(broker.host, broker.port, vhost, credentials)
        opened.append(pika.BlockingConnection(parameters))
        return opened[-1]

    yield connect
    for connection in opened:
        if connection.is_open:
            connection.close()


def test_pika_logs_in_with_a_token_as_password(provider: OidcProvider, connect: Connect) -> None:
    channel = connect(provider.token(ALL)).channel()
    channel.queue_declare("oauth-pika", exclusive=True)
    channel.basic_publish("", "oauth-pika", b"hello")
    method, _, body = channel.basic_get("oauth-pika", auto_ack=True)
    assert method is not None and body == b"hello"


def test_scopes_are_the_permissions(provider: OidcProvider, connect: Connect) -> None:
    scope = "leveret.configure:%2F/mine-* leveret.write:%2F/mine-*/green.* leveret.read:%2F/mine-*"
    connection = connect(provider.token(scope))
    channel = connection.channel()
    channel.queue_declare("mine-queue", exclusive=True)
    channel.exchange_declare("mine-topics", "topic")
    channel.basic_publish("mine-topics", "green.apple", b"")
    channel.confirm_delivery()
    channel.basic_publish("mine-topics", "green.pear", b"")
    with pytest.raises(ChannelClosedByBroker, match=r"topic 'red\.apple'"):
        channel.basic_publish("mine-topics", "red.apple", b"")
    with pytest.raises(ChannelClosedByBroker, match="refused for user 'service'") as error:
        connection.channel().queue_declare("other", exclusive=True)
    assert error.value.reply_code == 403
    with pytest.raises(ProbableAccessDeniedError):
        connect(provider.token(scope), vhost="interop")


def test_roles_of_nested_claims_and_aliases_are_scopes(provider: OidcProvider, connect: Connect) -> None:
    roles = {"realm_access": {"roles": ["leveret.write:*/*", "leveret.configure:*/*", "operators"]}}
    channel = connect(provider.token("openid-unused", claims=roles)).channel()
    channel.queue_declare("oauth-roles", exclusive=True)
    assert channel.basic_get("oauth-roles")[0] is None


def test_every_configured_algorithm_is_accepted(provider: OidcProvider, connect: Connect) -> None:
    assert connect(provider.token(ALL, algorithm="ES256")).is_open


@pytest.mark.parametrize("protocol", ["0-9", "0-9-1", "1.0"])
def test_the_client_logs_in_over_every_protocol(provider: OidcProvider, broker: LeveretProcess, protocol: str) -> None:
    token = provider.token(ALL, claims={"preferred_username": "alice"})
    with sync.connect(broker.url(user="any", password=token), protocol=protocol):
        assert any(row["user"] == "alice" for row in connections(broker))


def connections(broker: LeveretProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api(broker, "GET", "/connections", basic("guest", "guest"))[1]
    return found


def test_proton_logs_in_with_a_large_token(provider: OidcProvider, broker: LeveretProcess) -> None:
    proton = pytest.importorskip("proton")
    from proton.utils import BlockingConnection

    token = provider.token(ALL, claims={"pad": "x" * 2000})
    connection = BlockingConnection(
        f"amqp://{broker.host}:{broker.port}", user="any", password=token, allowed_mechs="PLAIN", timeout=60
    )
    try:
        sender = connection.create_sender("/queues/" + declare(connect_admin(broker), "oauth-proton"))
        sender.send(proton.Message(body="hello"))
    finally:
        connection.close()


def connect_admin(broker: LeveretProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.port))


def declare(connection: pika.BlockingConnection, name: str) -> str:
    connection.channel().queue_declare(name, auto_delete=False)
    connection.close()
    return name


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"audience": "other"}, "aud"),
        ({"claims": {"preferred_username": "guest"}}, "the broker has a user with this name"),
    ],
)
def test_other_tokens_are_refused_with_a_reason_in_the_log(
    provider: OidcProvider, broker: LeveretProcess, options: dict[str, Any], reason: str
) -> None:
    before = len(broker.log())
    with pytest.raises(AuthenticationFailed):
        sync.connect(broker.url(user="any", password=provider.token(ALL, **options)), protocol="0-9-1")
    assert reason in broker.wait_for_log("login refused: mechanism PLAIN: the token", before)


@pytest.mark.parametrize("protocol", ["0-9-1", "1.0"])
def test_the_size_of_tokens_over_amqp_is_limited(provider: OidcProvider, broker: LeveretProcess, protocol: str) -> None:
    token = provider.token(ALL, claims={"pad": "x" * 5000})
    sync.connect(broker.url(user="any", password=token), protocol=protocol).close()
    with pytest.raises(Error):
        huge = provider.token(ALL, claims={"pad": "x" * 9000})
        sync.connect(broker.url(user="any", password=huge), protocol=protocol)


def test_a_changed_token_is_refused(provider: OidcProvider, connect: Connect) -> None:
    head, claims, signature = provider.token(ALL).split(".")
    decoded = json.loads(base64.urlsafe_b64decode(claims + "=="))
    changed = base64.urlsafe_b64encode(json.dumps(decoded | {"sub": "root"}).encode()).rstrip(b"=").decode()
    with pytest.raises(REFUSED):
        connect(f"{head}.{changed}.{signature}")
    unsigned = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    with pytest.raises(REFUSED):
        connect(f"{unsigned}.{claims}.")


# Expiry and renewal


def test_expiry_closes_a_connection_with_530(provider: OidcProvider, connect: Connect) -> None:
    connection = connect(provider.token(ALL, ttl=BRIEF))
    with pytest.raises(ConnectionClosedByBroker, match="expired") as error:
        connection.process_data_events(time_limit=60)
    assert error.value.reply_code == 530


def test_expiry_closes_a_connection_of_1_0_with_unauthorized_access(provider: OidcProvider, broker: LeveretProcess) -> None:
    connection = sync.connect(
        broker.url(user="any", password=provider.token(ALL, ttl=BRIEF)), protocol="1.0", reconnect=False
    )
    wait_until(lambda: not connection.is_open, "the connection stays open")
    assert "amqp:unauthorized-access" in broker.wait_for_log("connection closed with amqp:unauthorized-access")


def test_an_expired_token_is_refused_although_it_is_known(provider: OidcProvider, connect: Connect) -> None:
    token = provider.token(ALL, ttl=BRIEF)
    connection = connect(token)
    with pytest.raises(ConnectionClosedByBroker):
        connection.process_data_events(time_limit=60)
    with pytest.raises(REFUSED):
        connect(token)


def test_a_renewed_token_keeps_a_connection_open(provider: OidcProvider, connect: Connect) -> None:
    connection = connect(provider.token(ALL, ttl=BRIEF))
    end = time.time() + BRIEF
    connection.update_secret(provider.token(ALL, ttl=60), "renewal")
    wait_until(lambda: time.time() > end + 0.2, "time stands still")
    connection.process_data_events(time_limit=0)
    connection.channel().queue_declare("renewed", exclusive=True)


def test_a_renewed_token_may_expire_earlier(provider: OidcProvider, connect: Connect) -> None:
    connection = connect(provider.token(ALL, ttl=600))
    connection.update_secret(provider.token(ALL, ttl=BRIEF), "renewal")
    with pytest.raises(ConnectionClosedByBroker, match="expired"):
        connection.process_data_events(time_limit=60)


def test_the_permissions_of_a_renewed_token_apply_at_once(provider: OidcProvider, connect: Connect) -> None:
    connection = connect(provider.token(ALL))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.exchange_declare("oauth-renewed", "fanout", auto_delete=True)
    channel.basic_publish("oauth-renewed", "", b"")
    connection.update_secret(provider.token("leveret.read:*/*"), "renewal")
    with pytest.raises(ChannelClosedByBroker, match="write access to 'oauth-renewed'"):
        channel.basic_publish("oauth-renewed", "", b"")
    connection.update_secret(provider.token(ALL), "renewal")
    connection.channel().exchange_declare("oauth-renewed-2", "fanout", auto_delete=True)


@pytest.mark.parametrize(
    ("scope", "options"), [(ALL, {"claims": {"preferred_username": "bob"}}), (ALL, {"audience": "other"})]
)
def test_a_token_of_another_user_or_audience_ends_the_connection(
    provider: OidcProvider, connect: Connect, scope: str, options: dict[str, Any]
) -> None:
    connection = connect(provider.token(ALL))
    with pytest.raises(ConnectionClosedByBroker, match="secret was refused") as error:
        connection.update_secret(provider.token(scope, **options), "renewal")
    assert error.value.reply_code == 530


def test_renewal_over_1_0(provider: OidcProvider, broker: LeveretProcess) -> None:
    with sync.connect(
        broker.url(user="any", password=provider.token(ALL, ttl=BRIEF)), protocol="1.0", reconnect=False
    ) as connection:
        end = time.time() + BRIEF
        connection.update_secret(provider.token(ALL, ttl=60))
        wait_until(lambda: time.time() > end + 0.2, "time stands still")
        assert connection.is_open


def test_a_password_user_may_send_any_secret(broker: LeveretProcess) -> None:
    connection = connect_admin(broker)
    connection.update_secret("anything", "renewal")
    connection.channel().close()
    connection.close()


# HTTP


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def api(broker: LeveretProcess, method: str, path: str, authorization: str, body: Any = None) -> tuple[int, Any]:
    ready = json.loads((broker.directory / "ready.json").read_text("utf-8"))
    port = int(ready["management"][0].rstrip("/").rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        content = None if body is None else json.dumps(body).encode()
        connection.request(method, "/api" + path, content, {"Authorization": authorization})
        response = connection.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text else None
    finally:
        connection.close()


def test_a_bearer_token_has_the_rights_of_its_scopes(provider: OidcProvider, broker: LeveretProcess) -> None:
    scope = "leveret.tag:management leveret.configure:%2F/http-* leveret.read:%2F/http-*"
    bearer = "Bearer " + provider.token(scope)
    status, found = api(broker, "GET", "/whoami", bearer)
    assert (status, found["name"], found["tags"]) == (200, "service", ["management"])
    assert api(broker, "PUT", "/queues/%2F/http-queue", bearer, {"durable": True})[0] == 201
    assert api(broker, "PUT", "/queues/%2F/other", bearer, {"durable": True})[0] == 401
    assert api(broker, "GET", "/users", bearer)[0] == 401
    assert api(broker, "GET", "/queues/interop", bearer)[0] == 404
    assert api(broker, "DELETE", "/queues/%2F/http-queue", bearer)[0] == 204


def test_a_bearer_token_may_be_that_of_an_administrator(provider: OidcProvider, broker: LeveretProcess) -> None:
    bearer = "Bearer " + provider.token("leveret.tag:administrator")
    assert api(broker, "GET", "/users", bearer)[0] == 200


def test_a_token_may_be_the_password_of_basic_authentication(provider: OidcProvider, broker: LeveretProcess) -> None:
    status, found = api(broker, "GET", "/whoami", basic("any", provider.token("leveret.tag:monitoring")))
    assert (status, found["name"]) == (200, "service")


@pytest.mark.parametrize("token", ["", "x", "eyJhbGciOiJub25lIn0.e30.", "x" * 40000])
def test_other_bearer_tokens_are_refused(broker: LeveretProcess, token: str) -> None:
    status, found = api(broker, "GET", "/whoami", f"Bearer {token}")
    assert (status, found) == (401, {"error": "not_authorized", "reason": "Login failed"})


def test_a_token_without_a_tag_has_no_management(provider: OidcProvider, broker: LeveretProcess) -> None:
    status, found = api(broker, "GET", "/whoami", "Bearer " + provider.token(ALL))
    assert (status, found["reason"]) == (401, "Not management user")


# Keys


@pytest.mark.slow
def test_a_rotated_key_is_fetched_when_a_token_needs_it(provider: OidcProvider, tmp_path: Path) -> None:
    config = basic_config() + provider.config()
    with LeveretProcess(tmp_path, config=config).start() as broker:
        broker.wait_for_log("keys of the OAuth provider")
        old = provider.token(ALL)
        sync.connect(broker.url(user="", password=old)).close()
        provider.rotate()
        before = provider.fetches()
        # A fetch is allowed some seconds after the last one.
        wait_until(lambda: can_log_in(broker, provider.token(ALL)), "the new key is not fetched")
        assert provider.fetches() <= before + 2
        # The provider does not publish the old key any more.
        assert not can_log_in(broker, old)
        broker.check_log()


def can_log_in(broker: LeveretProcess, token: str) -> bool:
    try:
        sync.connect(broker.url(user="any", password=token)).close()
    except AuthenticationFailed:
        return False
    return True


def test_unknown_keys_do_not_cause_a_fetch_each(provider: OidcProvider, broker: LeveretProcess) -> None:
    before = provider.fetches()
    for number in range(20):
        header = base64.urlsafe_b64encode(json.dumps({"alg": "RS256", "kid": f"{number}"}).encode()).rstrip(b"=").decode()
        assert not can_log_in(broker, f"{header}.e30.AAAA")
    assert provider.fetches() <= before + 2


@pytest.mark.parametrize(
    "mode", ["hang", pytest.param("drip", marks=pytest.mark.slow), "huge", "many", "garbage", "redirect"]
)
def test_a_hostile_provider_does_not_stall_other_logins(provider: OidcProvider, tmp_path: Path, mode: str) -> None:
    provider.serve_keys(mode)
    try:
        with LeveretProcess(tmp_path, config=basic_config() + provider.config()).start() as broker:
            for _ in range(5):
                sync.connect(broker.url()).close()
            assert not can_log_in(broker, provider.token(ALL))
            assert "cannot fetch the keys" in broker.wait_for_log("cannot fetch the keys of the OAuth provider")
            assert broker.memory() < 300 << 20
            broker.check_log()
    finally:
        provider.serve_keys("normal")


def test_tokens_of_several_providers(provider: OidcProvider, tmp_path: Path) -> None:
    with run_provider() as second, run_provider() as unknown:
        settings = f"""
[auth.oauth.providers.partner]
issuer = "{second.issuer}"
resource_server_id = "partner"
audience = "leveret"
algorithms = ["ES256"]
username_claims = ["preferred_username"]
scope_aliases.reader.scopes = ["partner.tag:monitoring", "partner.read:%2F/shared-*"]
"""
        process = LeveretProcess(
            tmp_path,
            config=basic_config() + provider.config() + settings + "[management]\nport = 0\nrefused_logins = 0\n",
            environment={"LEVERET_MANAGEMENT__ENABLED": "true"},
        )
        with process.start():

            def login(token: str) -> tuple[int, Any]:
                status, answer = api(process, "GET", "/whoami", f"Bearer {token}")
                return status, answer.get("name") or answer["reason"]

            alice = {"preferred_username": "alice"}
            assert login(provider.token("leveret.tag:administrator")) == (200, "service")
            assert login(second.token("reader", claims=alice, algorithm="ES256")) == (200, "alice")
            # Each provider has its own rules: algorithms, claims, and prefix of scopes.
            assert login(second.token("reader", claims=alice))[0] == 401
            assert login(second.token("reader", algorithm="ES256"))[0] == 401
            assert login(second.token("leveret.tag:administrator", claims=alice, algorithm="ES256"))[0] == 401
            assert login(unknown.token("leveret.tag:administrator"))[0] == 401
            process.wait_for_log(f"names the issuer '{unknown.issuer}'; expected {provider.issuer} or {second.issuer}")
            # A token is verified with the keys of the provider that it names.
            named = provider.token("leveret.tag:administrator").rpartition(".")[0]
            signed = second.token("leveret.tag:administrator").rpartition(".")[2]
            assert login(f"{named}.{signed}")[0] == 401
            for broken in ("e30.e30.", "eyJhbGciOiJSUzI1NiJ9.W10.x", "eyJhbGciOiJSUzI1NiJ9.****.x"):
                assert login(broken)[0] == 401
            process.check_log()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            '[auth.oauth]\nresource_server_id = "x"\nkey_file = "k"\n[auth.oauth.providers.b]\nissuer = "https://b"\n',
            "without a first provider",
        ),
        (
            '[auth.oauth]\nresource_server_id = "x"\nissuer = "https://a"\n[auth.oauth.providers.b]\n',
            "'auth.oauth.providers.b' has no 'issuer'",
        ),
        (
            '[auth.oauth]\nresource_server_id = "x"\nissuer = "https://a"\n[auth.oauth.providers.b]\nissuer = "https://a"\n',
            "'auth.oauth.providers.b.issuer' is also the one of 'auth.oauth'",
        ),
        (
            '[auth.oauth]\nresource_server_id = "x"\nissuer = "https://a"\n'
            '[auth.oauth.providers.b]\nissuer = "https://b"\nalgorithms = []\n',
            "'auth.oauth.providers.b.algorithms' is empty",
        ),
        (
            '[management.oauth_providers.b]\nclient_id = "console"\n',
            "'management.oauth_providers.b' is no provider; expected a name of 'auth.oauth.providers'",
        ),
        (
            '[auth.oauth]\nresource_server_id = "x"\nissuer = "https://a"\n'
            '[auth.oauth.providers.b]\nissuer = "https://b"\n[management.oauth_providers.b]\n',
            "'management.oauth_providers.b' has no 'client_id'",
        ),
        (
            '[auth.oauth]\nresource_server_id = "x"\nissuer = "https://a"\n[auth.oauth.providers.b]\nissuer = "https://b"\n'
            '[management.oauth_providers.b]\nclient_id = "c"\norigins = ["https://b/x"]\n',
            "'management.oauth_providers.b.origins' has 'https://b/x'; expected an origin",
        ),
    ],
)
def test_contradictions_between_providers_are_refused(settings: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "leveret.toml"
    path.write_text(settings)
    with pytest.raises(ConfigError, match=re.escape(expected)):
        load_config(path)

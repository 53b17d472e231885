"""URLs and options: all forms that clients accept, round trips, and errors."""

from __future__ import annotations

import re
import ssl
from dataclasses import fields
from typing import Any
from urllib.parse import quote, urlencode

import pika
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leveret.client.errors import InvalidUrl
from leveret.client.options import _ALL, _OWN, ConnectOptions
from leveret.client.parameters import MECHANISMS, Parameters
from leveret.client.url import parse_hosts, parse_url, parse_urls

DEFAULTS = Parameters()


def place(url: str, **options: Any) -> tuple[str, int, str]:
    parameters = parse_url(url, **options)
    return parameters.host, parameters.port, parameters.vhost


def login(url: str, **options: Any) -> tuple[str, str]:
    parameters = parse_url(url, **options)
    return parameters.user, parameters.password


# Forms of URLs


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://", ("localhost", 5672, "/")),
        ("amqps://", ("localhost", 5671, "/")),
        ("amqp://rabbit", ("rabbit", 5672, "/")),
        ("AMQP://rabbit:1234/", ("rabbit", 1234, "/")),
        ("amqps://rabbit:1234/shop", ("rabbit", 1234, "shop")),
        ("amqp://:1234", ("localhost", 1234, "/")),
        ("amqp://rabbit:", ("rabbit", 5672, "/")),
        ("amqp:///shop", ("localhost", 5672, "shop")),
        ("amqp://rabbit/%2F", ("rabbit", 5672, "/")),
        ("amqp://rabbit/%2f", ("rabbit", 5672, "/")),
        ("amqp://rabbit//", ("rabbit", 5672, "/")),
        ("amqp://rabbit/a%2fb%3fc%23d%40", ("rabbit", 5672, "a/b?c#d@")),
        ("amqp://rabbit/a/b", ("rabbit", 5672, "a/b")),
        ("amqp://rabbit/gr%C3%BC%C3%9Fe", ("rabbit", 5672, "grüße")),
        ("amqp://rabbit/a+b", ("rabbit", 5672, "a+b")),
        ("amqp://ra%62bit:5673/", ("rabbit", 5673, "/")),
        ("amqp://[::1]", ("::1", 5672, "/")),
        ("amqp://u:p@[2001:db8::5]:1234/v", ("2001:db8::5", 1234, "v")),
        ("amqp://[fe80::1%25eth0]", ("fe80::1%eth0", 5672, "/")),
        ("amqp://127.0.0.1", ("127.0.0.1", 5672, "/")),
        ("amqp://bücher.example", ("bücher.example", 5672, "/")),
        ("amqp://rabbit?vhost=a%2Fb&host=hare&port=7", ("hare", 7, "a/b")),
        ("amqp://rabbit/shop?heartbeat=5", ("rabbit", 5672, "shop")),
        ("amqp://rabbit/shop?", ("rabbit", 5672, "shop")),
        ("amqp://rabbit:5672/vhost@home", ("rabbit", 5672, "vhost@home")),
    ],
)
def test_hosts_and_ports(url: str, expected: tuple[str, int, str]) -> None:
    assert place(url) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://rabbit", ("guest", "guest")),
        ("amqp://ann:secret@rabbit", ("ann", "secret")),
        ("amqp://ann@rabbit", ("ann", "")),
        ("amqp://ann:@rabbit", ("ann", "")),
        ("amqp://:@rabbit", ("", "")),
        ("amqp://a%3An%40n:%2F%3F%23%25+@rabbit", ("a:n@n", "/?#%+")),
        ("amqp://ann:a:b@rabbit", ("ann", "a:b")),
        ("amqp://ann:a@b@rabbit", ("ann", "a@b")),
        ("amqp://ann:%C3%BC@rabbit", ("ann", "ü")),
        ("amqp://rabbit?user=ann&password=a%26b", ("ann", "a&b")),
    ],
)
def test_credentials(url: str, expected: tuple[str, str]) -> None:
    assert login(url) == expected


def test_non_utf8_bytes_reach_the_server() -> None:
    assert parse_url("amqp://ann:%FF%FE@rabbit").sasl() == ("PLAIN", b"\0ann\0\xff\xfe")


def test_keywords_take_precedence() -> None:
    url = "amqp://ann:secret@rabbit:1234/shop?heartbeat=5&name=url"
    parameters = parse_url(url, host="hare", port=7, vhost="/", user="bob", password="pw", heartbeat=9, name="mine")
    assert (parameters.host, parameters.port, parameters.vhost) == ("hare", 7, "/")
    assert (parameters.user, parameters.password, parameters.heartbeat, parameters.name) == ("bob", "pw", 9, "mine")


def test_default_password_is_for_guest_only() -> None:
    assert login("amqp://", user="ann") == ("ann", "")
    assert login("amqp://", password="secret") == ("guest", "secret")


def test_defaults() -> None:
    assert parse_url() == parse_url("amqp://guest:guest@localhost:5672/") == DEFAULTS


def test_none_means_default_or_no_limit() -> None:
    options: dict[str, Any] = {name: None for name in _ALL if name not in ("timeout", "blocked_connection_timeout")}
    assert parse_url("amqp://", **options) == DEFAULTS
    assert parse_url("amqp://", timeout=None).timeout is None
    assert parse_url("amqp://?timeout=none").timeout is None
    assert parse_url("amqp://?blocked_timeout=5", blocked_timeout=None).blocked_timeout is None


def test_several_urls() -> None:
    found = parse_urls(["amqp://a", "amqps://b:1"], heartbeat=5)
    assert [(one.host, one.port, one.uses_tls, one.heartbeat) for one in found] == [
        ("a", 5672, False, 5),
        ("b", 1, True, 5),
    ]
    assert parse_urls("amqp://a") == [parse_url("amqp://a")]
    with pytest.raises(InvalidUrl, match="empty"):
        parse_urls([])
    for wrong in (5, None, b"amqp://", [None], [b"amqp://a"], ["amqp://a", "http://b"]):
        with pytest.raises(InvalidUrl):
            parse_urls(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("urls", "protocol", "expected"),
    [
        ("amqp://", None, "0-9-1"),
        ("amqp://?protocol=0-9-1", None, "0-9-1"),
        ("amqp://?protocol=auto", None, "0-9-1"),
        ("amqp://", "auto", "auto"),
        ("amqp://?protocol=1.0", "auto", "1.0"),
        ("amqp://?protocol=0-9", "auto", "0-9"),
        ("amqp://", "1.0", "1.0"),
        ("amqp://?protocol=0-9-1", "1.0", "1.0"),
        (["amqp://a", "amqp://b"], "0-9", "0-9"),
    ],
)
def test_protocol_of_a_connection(urls: str | list[str], protocol: str | None, expected: str) -> None:
    assert {host.protocol for host in parse_hosts(urls, protocol, {})} == {expected}


@pytest.mark.parametrize(
    ("urls", "protocol", "text"),
    [
        ("amqp://?protocol=1.0", None, 'expected argument protocol="1.0"'),
        ("amqp://?protocol=0-9", None, 'expected argument protocol="0-9"'),
        ("amqp://", "0-10", "option protocol"),
        (["amqp://a?protocol=1.0", "amqp://b"], "auto", "different protocols: 1.0, auto"),
    ],
)
def test_refused_protocols(urls: str | list[str], protocol: str | None, text: str) -> None:
    with pytest.raises(InvalidUrl, match=re.escape(text)):
        parse_hosts(urls, protocol, {})


# Options


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("heartbeat=0", {"heartbeat": 0}),
        ("channel_max=100&frame_max=4096", {"channel_max": 100, "frame_max": 4096}),
        (
            "connect_timeout=2.5&timeout=3&blocked_timeout=0",
            {"connect_timeout": 2.5, "timeout": 3.0, "blocked_timeout": 0.0},
        ),
        ("reconnect=false", {"reconnect": False}),
        ("reconnect=No", {"reconnect": False}),
        (
            "reconnect_delay=0&reconnect_max_delay=1&reconnect_attempts=5",
            {"reconnect_delay": 0, "reconnect_max_delay": 1, "reconnect_attempts": 5},
        ),
        ("reconnect_delay=60", {"reconnect_delay": 60, "reconnect_max_delay": 60}),
        ("name=my+service&protocol=0-9-1&locale=de_DE", {"name": "my service", "protocol": "0-9-1", "locale": "de_DE"}),
        ("connection_name=a%2Bb", {"name": "a+b"}),
        ("mechanism=AMQPLAIN", {"mechanism": "AMQPLAIN"}),
        ("protocol=1.0&hostname=vhost%3Aa&container_id=b", {"protocol": "1.0", "hostname": "vhost:a", "container_id": "b"}),
        # pika
        ("connection_attempts=3&retry_delay=0.5", {"reconnect_attempts": 3, "reconnect_delay": 0.5}),
        ("socket_timeout=3", {"connect_timeout": 3.0}),
        ("stack_timeout=5&socket_timeout=3", {"connect_timeout": 5.0}),
        ("socket_timeout=3&stack_timeout=5", {"connect_timeout": 5.0}),
        ("blocked_connection_timeout=7", {"blocked_timeout": 7.0}),
        ("ssl_options=None", {"tls": False}),
        ("ssl_options=%7B%7D", {"tls": True, "port": 5672}),
        # RabbitMQ
        ("connection_timeout=2500", {"connect_timeout": 2.5}),
        ("auth_mechanism=amqplain", {"mechanism": "AMQPLAIN"}),
        # aio-pika
        ("name=me&timeout=9&auth=plain", {"name": "me", "timeout": 9.0, "mechanism": "PLAIN"}),
        ("reconnect_interval=4", {"reconnect_delay": 4.0}),
    ],
)
def test_query_options(query: str, expected: dict[str, Any]) -> None:
    assert parse_url(f"amqp://rabbit?{query}") == Parameters(**({"host": "rabbit"} | expected))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            "cafile=/ca.pem&certfile=c.pem&keyfile=k.pem&keypassword=s&server_name=x.example",
            {"cafile": "/ca.pem", "certfile": "c.pem", "keyfile": "k.pem", "keypassword": "s", "server_name": "x.example"},
        ),
        ("verify=false", {"verify": False}),
        (
            "cacertfile=/ca.pem&verify=verify_peer&server_name_indication=x.example",
            {"cafile": "/ca.pem", "server_name": "x.example"},
        ),
        ("verify=verify_none", {"verify": False}),
        ("no_verify_ssl=1", {"verify": False}),
        ("no_verify_ssl=0", {"verify": True}),
        (
            urlencode(
                {"ssl_options": repr({"ca_certs": "/ca.pem", "certfile": "c", "keyfile": None, "server_hostname": "h"})}
            ),
            {"cafile": "/ca.pem", "certfile": "c", "server_name": "h"},
        ),
    ],
)
def test_tls_options(query: str, expected: dict[str, Any]) -> None:
    assert parse_url(f"amqps://rabbit?{query}") == Parameters(host="rabbit", tls=True, **expected)


def test_keywords_may_be_text_or_synonyms() -> None:
    assert parse_url(heartbeat="5", reconnect="no", connection_timeout=1500, auth="AmqPlain", host="[::1]") == Parameters(
        heartbeat=5, reconnect=False, connect_timeout=1.5, mechanism="AMQPLAIN", host="::1"
    )
    assert parse_url("amqps://", ssl_options={"cafile": "a"}, verify=False) == Parameters(
        tls=True, cafile="a", verify=False
    )


def test_python_objects_as_keywords() -> None:
    context = ssl.create_default_context()
    events: list[Any] = []
    parameters = parse_url("amqp://rabbit", tls=context, client_properties={"team": "a"}, on_event=events.append)
    assert parameters.tls_context() is context
    assert (parameters.uses_tls, parameters.port, parameters.client_properties) == (True, 5671, {"team": "a"})
    assert parameters.on_event is not None
    assert parse_url("amqp://rabbit:5672", tls=True).port == 5672


def test_every_field_of_parameters_is_an_option() -> None:
    names = {field.name for field in fields(Parameters)}
    assert names == {*_OWN, "tls", "client_properties", "on_event"}


def test_compatible_with_urls_of_pika() -> None:
    for url in (
        "amqp://ann:s%2Fe@rabbit:1234/a%2Fb?heartbeat=7&channel_max=9&frame_max=5000",
        "amqp://h",
        "amqps://h/v",
        "amqp://u:p@h/?locale=de_DE&blocked_connection_timeout=3.5&retry_delay=4&connection_attempts=5",
    ):
        theirs, ours = pika.URLParameters(url), parse_url(url)
        assert (ours.host, ours.port, ours.vhost) == (theirs.host, theirs.port, theirs.virtual_host)
        assert (ours.user, ours.password) == (theirs.credentials.username, theirs.credentials.password)
        assert ours.uses_tls == (theirs.ssl_options is not None)
        if "?" in url:
            assert ours.blocked_timeout == theirs.blocked_connection_timeout
            assert ours.locale == theirs.locale
        if "heartbeat" in url:
            assert (ours.heartbeat, ours.channel_max, ours.frame_max) == (
                theirs.heartbeat,
                theirs.channel_max,
                theirs.frame_max,
            )


# Errors


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "has no scheme; expected amqp://"),
        ("localhost:5672", "has no scheme"),
        ("http://rabbit", "begins with 'http'; expected amqp://"),
        (" amqp://rabbit", "begins with ' amqp'"),
        ("amqp://rabbit\n", "option host: .*expected a name or an address"),
        ("amqp://rab bit", "option host: 'rab bit'"),
        ("amqp://" + "a" * 64, "option host: "),
        ("amqp://a..b", "option host: 'a..b'"),
        ("amqp://[::1", "expected an IPv6 address in brackets"),
        ("amqp://[rabbit]", "expected an IPv6 address in brackets"),
        ("amqp://[::1]5672", "expected an IPv6 address in brackets"),
        ("amqp://[1:2:3]", "option host: '1:2:3'"),
        ("amqp://::1", "expected an IPv6 address in brackets"),
        ("amqp://rabbit:amqp", "option port: 'amqp' is invalid; expected an integer from 1 to 65535"),
        ("amqp://rabbit:0", "option port: '0'"),
        ("amqp://rabbit:65536", "option port: '65536'"),
        ("amqp://rabbit:-1", "option port: '-1'"),
        ("amqp://rabbit:٥", "option port"),
        ("amqp://rabbit:" + "9" * 5000, "option port"),
        ("amqp://rabbit/#", "'#'.*%23"),
        ("amqp://rabbit/" + "v" * 256, "option vhost: .*1 to 255 bytes"),
        ("amqp://rabbit?vhost=", "option vhost: ''"),
        ("amqp://ann:a%00b@rabbit", "options user and password: PLAIN cannot transfer NUL"),
        ("amqp://rabbit?hartbeat=5", "unknown option 'hartbeat'; did you mean 'heartbeat'"),
        ("amqp://rabbit?Heartbeat=5", "did you mean 'heartbeat'"),
        ("amqp://rabbit?cacertfil=5", "did you mean 'cacertfile'"),
        ("amqp://rabbit?heartbeat", "option heartbeat: '' is invalid; expected an integer"),
        ("amqp://rabbit?heartbeat=5s", "option heartbeat: '5s'"),
        ("amqp://rabbit?heartbeat=65536", "option heartbeat: 65536 .*from 0 to 65535"),
        ("amqp://rabbit?heartbeat=-1", "option heartbeat: '-1'"),
        ("amqp://rabbit?heartbeat=5&heartbeat=5", "heartbeat is given twice"),
        ("amqp://rabbit?auth=plain&mechanism=PLAIN", "auth and mechanism set the same option"),
        ("amqp://rabbit?frame_max=4095", "option frame_max: 4095 .*0 or at least 4096"),
        ("amqp://rabbit?timeout=0", "option timeout: 0.0 .*seconds above 0, or None"),
        ("amqp://rabbit?connect_timeout=none", "option connect_timeout: 'none' .*seconds"),
        ("amqp://rabbit?timeout=inf", "option timeout: 'inf'"),
        ("amqp://rabbit?timeout=1e3", "option timeout: '1e3'"),
        ("amqp://rabbit?timeout=99999999999", "option timeout: "),
        ("amqp://rabbit?connection_timeout=0", "option connection_timeout: 0.0 .*milliseconds above 0"),
        ("amqp://rabbit?reconnect=maybe", "option reconnect: 'maybe' .*true or false"),
        (
            "amqp://rabbit?reconnect_delay=5&reconnect_max_delay=1",
            "option reconnect_max_delay: 1.0 .*at least reconnect_delay",
        ),
        ("amqp://rabbit?mechanism=GSSAPI", "option mechanism: 'GSSAPI' .*one of PLAIN, AMQPLAIN, .*, SCRAM-SHA-512"),
        ("amqp://rabbit?protocol=1.1", "option protocol: '1.1' .*one of auto, 0-9-1, 0-9, 1.0"),
        ("amqp://rabbit?tls=true", "option tls in a URL; expected it as a keyword"),
        ("amqp://rabbit?client_properties=%7B%7D", "option client_properties in a URL; expected it as a keyword"),
        ("amqp://rabbit?verify=verify_none", "options verify without TLS; expected amqps://"),
        ("amqp://rabbit?certfile=a&server_name=b", "options certfile, server_name without TLS"),
        ("amqps://rabbit?keyfile=a", "option keyfile without option certfile"),
        ("amqps://rabbit?verify=perhaps", "option verify: 'perhaps' .*verify_peer or verify_none"),
        ("amqps://rabbit?server_name_indication=disable", "server_name_indication: 'disable' .*verify_none"),
        ("amqps://rabbit?ssl_options=None", "disables TLS"),
        ("amqps://rabbit?ssl_options=nonsense", "ssl_options cannot be read; expected a dict of"),
        ("amqps://rabbit?ssl_options=5", "ssl_options is not a dict"),
        ("amqps://rabbit?ssl_options={'ciphers':'x'}", "unknown key 'ciphers'; expected .*ssl.SSLContext"),
        ("amqps://rabbit?ssl_options={'cafile':5}", "option cafile: 5 .*text"),
    ],
)
def test_refused_urls(url: str, complaint: str) -> None:
    with pytest.raises(InvalidUrl, match=complaint) as caught:
        parse_url(url)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"hots": "x"}, "unknown option 'hots'; did you mean 'host'"),
        ({"host": 5}, "option host: 5 .*text"),
        ({"host": ""}, "option host: ''"),
        ({"port": True}, "option port: True"),
        ({"port": 5672.0}, "option port: 5672.0"),
        ({"vhost": ""}, "option vhost: '' .*1 to 255 bytes"),
        ({"vhost": b"/"}, "option vhost: b'/' .*text"),
        ({"name": "\ud800"}, "option name: .*Unicode"),
        ({"heartbeat": 10**5000}, "option heartbeat: the number"),
        ({"timeout": 10**5000}, "option timeout: the number"),
        ({"connection_timeout": 10**5000}, "option connection_timeout: the number"),
        ({"timeout": float("nan")}, "option timeout: nan"),
        ({"reconnect": 1}, "option reconnect: 1 .*True or False"),
        ({"no_verify_ssl": []}, r"option no_verify_ssl: \[\]"),
        ({"tls": "yes"}, "option tls: 'yes' .*SSLContext"),
        ({"client_properties": []}, r"option client_properties: \[\] .*a dict"),
        ({"client_properties": {"a": object()}}, "option client_properties: .*object"),
        ({"client_properties": {5: 5}}, "option client_properties: "),
        ({"on_event": "print"}, "option on_event: 'print' .*function"),
        ({"ssl_options": 5}, "ssl_options is not a dict"),
    ],
)
def test_refused_keywords(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidUrl, match=complaint):
        parse_url("amqp://rabbit", **options)


def test_tls_is_not_disabled_by_accident() -> None:
    with pytest.raises(InvalidUrl, match="disables TLS"):
        parse_url("amqps://rabbit", tls=False)
    with pytest.raises(
        InvalidUrl, match=r"cafile, verify with an ssl\.SSLContext as option tls; expected only the context"
    ):
        parse_url("amqps://rabbit", tls=ssl.create_default_context(), verify=False, cafile="x")


@pytest.mark.parametrize(
    "url",
    [
        "amqp://ann:s3cr/et@rabbit",
        "amqp://ann:s3cr?et@rabbit",
        "amqp://ann:s3cr#et@rabbit",
        "amqp://ann:1?s3cret@rabbit",
        "amqps://rabbit?keypassword=s3cr&et",
        "amqps://rabbit?keypassword=x&s3cret",
        "amqp://ann:314159?s3cret@rabbit",
        "amqp://ann@home:s3cr/et@rabbit",
        "amqp://ann@home:s3cr:/et@rabbit",
        "amqp://[ann:s3cr/et@rabbit",
        "amqp://ann:x:s3cr/et@rabbit",
        "amqp://ann:s3cr%00et@rabbit",
        "amqp://ann:s3cret@rabbit:port",
        "amqp://ann:s3cret@rabbit?bad=1",
        "ann:s3cret@rabbit",
        "amqp://ann:s3cret@[rabbit",
        "amqp://ann:s3cret@::1",
        "amqps://rabbit?keypassword=s3cret&x=1",
    ],
)
def test_passwords_are_not_shown(url: str) -> None:
    with pytest.raises(InvalidUrl) as caught:
        parse_url(url)
    assert "s3cr" not in str(caught.value)
    assert "314159" not in str(caught.value)


def test_invalid_password_is_not_shown() -> None:
    with pytest.raises(InvalidUrl, match="option password: the value is invalid") as caught:
        parse_url(password=b"secret")
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(parse_url("amqps://u:secret@h?keypassword=secret&certfile=c"))


# Round trips and invalid input

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
surrogates = st.binary(max_size=20).map(lambda data: data.replace(b"\0", b"").decode("utf-8", "surrogateescape"))
hosts = st.one_of(
    st.from_regex(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?(\.[a-z]{1,10}){0,3}", fullmatch=True), st.ip_addresses().map(str)
)


@st.composite
def parameters(draw: st.DrawFn) -> Parameters:
    options: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {"host": hosts, "port": st.integers(1, 65535)},
            optional={
                "vhost": names.filter(bool),
                "protocol": st.sampled_from(["auto", "0-9-1"]),
                "name": names,
                "mechanism": st.sampled_from(MECHANISMS),
                "heartbeat": st.integers(0, 65535),
                "channel_max": st.integers(0, 65535),
                "frame_max": st.just(0) | st.integers(4096, 2**32 - 1),
                "connect_timeout": st.integers(1, 10**9),
                "timeout": st.none() | st.integers(1, 10**6).map(lambda x: x / 64),
                "blocked_timeout": st.none() | st.integers(0, 1000),
                "reconnect": st.booleans(),
                "reconnect_delay": st.integers(0, 30),
                "reconnect_max_delay": st.integers(30, 3000),
                "reconnect_attempts": st.integers(0, 100),
            },
        )
    )
    if draw(st.booleans()):
        options |= {"user": draw(names | surrogates), "password": draw(names | surrogates)}
    if draw(st.booleans()):
        options |= {"tls": True, "cafile": draw(names), "verify": draw(st.booleans()), "server_name": draw(hosts)}
        if draw(st.booleans()):
            options |= {"certfile": draw(names.filter(bool)), "keyfile": draw(names), "keypassword": draw(names)}
    return Parameters(**options)


def build(of: Parameters) -> str:
    def encoded(text: str) -> str:
        return quote(text.encode("utf-8", "surrogateescape"), safe="")

    host = f"[{of.host}]" if ":" in of.host else of.host
    head = (
        f"amqp{'s' if of.uses_tls else ''}://{encoded(of.user)}:{encoded(of.password)}@{host}:{of.port}/{encoded(of.vhost)}"
    )
    apart = {"host", "port", "vhost", "user", "password", "tls", "client_properties", "on_event"}
    query = {field.name: getattr(of, field.name) for field in fields(of) if field.name not in apart}
    return f"{head}?{urlencode({name: str(value) for name, value in query.items() if value != getattr(DEFAULTS, name)})}"


@given(parameters())
def test_built_urls_are_parsed(of: Parameters) -> None:
    assert parse_url(build(of)) == of


pieces = st.lists(
    st.sampled_from(
        [
            "amqp",
            "s",
            "://",
            "@",
            ":",
            "/",
            "?",
            "&",
            "=",
            "#",
            "[",
            "]",
            "%",
            "%2F",
            "%00",
            "%ff",
            "guest",
            "::1",
            "host",
            "5672",
            "0",
            "-1",
            ".",
            " ",
            "\n",
            "ü",
            "\ud800",
            "None",
            "{}",
            *_ALL,
        ]
    )
    | st.text(max_size=3),
    max_size=14,
).map("".join)


@given(st.one_of(st.text(), pieces, pieces.map("amqp://".__add__), pieces.map("amqps://h?".__add__)))
@example("amqps://h?ssl_options=" + "(" * 5000)
@example("amqps://h?ssl_options=" + "-" * 100000 + "1")
@example("amqps://h?ssl_options={[]:1}")
@example("amqps://h?ssl_options=%00")
def test_any_text_is_parsed_or_refused(url: str) -> None:
    try:
        found = parse_url(url)
    except InvalidUrl as error:
        assert str(error)
    else:
        found.sasl()
        assert repr(found)


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@given(st.dictionaries(st.sampled_from(_ALL) | st.text(max_size=8), values, max_size=3))
def test_any_keywords_are_accepted_or_refused(options: dict[str, Any]) -> None:
    options.pop("url", None)
    try:
        parse_url("amqp://h", **options)
    except InvalidUrl as error:
        assert str(error)


def test_the_types_of_the_options_name_all_options() -> None:
    assert set(ConnectOptions.__annotations__) == {*_ALL} - {"protocol"}

"""Loading the configuration: precedence, units, and an error message for every invalid value."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from leveret.config import Config, ConfigError, combine_config, load_config
from leveret.config.renamed import RENAMED_SETTINGS
from leveret.config.schema import Table, schema_of
from leveret.config.values import usable_cores
from leveret.node.choices import CHOICES
from tools.document_configuration import document, main

load = partial(load_config, choices=CHOICES)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "leveret.toml"
    path.write_text(text, "utf-8")
    return path


def error(
    tmp_path: Path, text: str = "", environment: dict[str, str] | None = None, flags: list[tuple[str, str]] | None = None
) -> str:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, text), environment or {}, flags or [])
    return str(caught.value)


def test_an_empty_configuration_has_the_defaults() -> None:
    assert load(None, {}) == Config()


def test_flags_override_the_environment_and_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[server]\nport = 1\nhost = 'file'\nlog_level = 'error'\n")
    environment = {"LEVERET_SERVER__PORT": "2", "LEVERET_SERVER__HOST": "environment"}
    config = load(path, environment, [("server.port", "3")])
    assert (config.server.port, config.server.host, config.server.log_level) == (3, "environment", "error")


def test_the_last_of_two_equal_flags_wins() -> None:
    assert load(None, {}, [("server.port", "3"), ("server.port", "4")]).server.port == 4


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8192", 8192),
        ("'8192'", 8192),
        ("'8k'", 8192),
        ("'8KiB'", 8192),
        ("'8 kb'", 8000),
        ("'1.5MiB'", 1572864),
    ],
)
def test_sizes_take_units(tmp_path: Path, text: str, size: int) -> None:
    assert load(write(tmp_path, f"[amqp]\nframe_max = {text}\n"), {}).amqp.frame_max == size


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.5", 0.5),
        ("'50%'", 0.5),
        ("1", 1.0),
        ("'2GiB'", 2.0 * 2**30),
        ("1000000", 1000000.0),
        ("0", 0.0),
    ],
)
def test_the_watermark_is_a_fraction_or_bytes(tmp_path: Path, text: str, value: float) -> None:
    config = load(write(tmp_path, f"[limits]\nmemory_high_watermark = {text}\n"), {})
    assert config.limits.memory_high_watermark == value


@pytest.mark.parametrize(("text", "seconds"), [("3", 3.0), ("0.25", 0.25), ("'250ms'", 0.25), ("'2min'", 120.0)])
def test_seconds_take_units(tmp_path: Path, text: str, seconds: float) -> None:
    config = load(write(tmp_path, f"[server]\nhandshake_timeout = {text}\n"), {})
    assert config.server.handshake_timeout == seconds


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    config = load(write(tmp_path, "[server]\ndata_dir = 'data'\n"), {})
    assert config.server.data_path == tmp_path / "data"


def test_paths_in_flags_are_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(None, {}, [("server.data_dir", "here")]).server.data_path == tmp_path / "here"


def test_the_home_directory_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Config().server.data_path == tmp_path / ".local/share/leveret"
    assert load(None, {"LEVERET_SERVER__DATA_DIR": "~/x"}).server.data_path == tmp_path / "x"


def test_users_and_vhosts_have_arbitrary_names(tmp_path: Path) -> None:
    config = load(
        write(
            tmp_path,
            """
        [users.alice]
        password = "secret"
        tags = ["administrator"]
        permissions."/" = { configure = ".*", write = "^a", read = "" }
        [users."bob@example.org"]
        [vhosts.strict]
        compat.strict = true
        limits.max_queues = 7
    """,
        ),
        {"LEVERET_USERS__Carol__TAGS": "one, two"},
        [('users."d.e".password', "x=y")],
    )
    alice = config.users["alice"]
    assert (alice.password, alice.tags, alice.permissions["/"].write) == ("secret", ["administrator"], "^a")
    assert config.users["bob@example.org"].password is None
    assert config.users["Carol"].tags == ["one", "two"]
    assert config.users["d.e"].password == "x=y"
    assert (config.vhosts["strict"].compat.strict, config.vhosts["strict"].limits.max_queues) == (True, 7)


def test_a_table_from_the_environment_is_toml() -> None:
    config = load(None, {"LEVERET_USERS__ALICE__PERMISSIONS": '{"/" = {configure = ".*"}}'})
    assert config.users["ALICE"].permissions["/"].configure == ".*"


def test_other_variables_with_the_prefix_are_not_settings() -> None:
    assert load(None, {"LEVERET_CONFIG": "x", "LEVERET_PURE": "1"}) == Config()


@pytest.mark.parametrize("text", ["true", "Yes", "ON", "1"])
def test_booleans_as_text(text: str) -> None:
    assert load(None, {"LEVERET_VHOSTS__a__COMPAT__STRICT": text}).vhosts["a"].compat.strict is True


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\nprot = 1\n", ["unknown setting 'server.prot'", "did you mean 'server.port'?"]),
        ("[serve]\nport = 1\n", ["unknown setting 'serve'", "did you mean 'server'?"]),
        ("[server]\nframe_max = 1\n", ["unknown setting 'server.frame_max'", "did you mean 'amqp.frame_max'?"]),
        ("[server]\nzzz = 1\n", ["unknown setting 'server.zzz'", "expected one of compat, data_dir,"]),
        (
            "[users.alice]\npasword = 'x'\n",
            ["unknown setting 'users.alice.pasword'", "did you mean 'users.alice.password'?"],
        ),
        (
            "[users.alice.permissions.'/']\nwite = 'x'\n",
            ["unknown setting 'users.alice.permissions.\"/\".wite'", "did you mean 'users.alice.permissions.\"/\".write'?"],
        ),
        ("[vhosts.v.compat]\nstrikt = true\n", ["did you mean 'vhosts.v.compat.strict'?"]),
        ("[server]\nport = 'x'\n", ["server.port: got 'x'", "expected an integer, 0 to 65535"]),
        ("[server]\nport = 65536\n", ["server.port: got 65536", "0 to 65535"]),
        ("[server]\nport = true\n", ["server.port: got True"]),
        ("[server]\nport = { a = 1 }\n", ["server.port", "expected an integer"]),
        ("server = 1\n", ["server: got 1, expected a table"]),
        ("[amqp]\nframe_max = 100\n", ["amqp.frame_max: got 100", "4096 to 2147483647"]),
        ("[amqp]\nframe_max = '100 apples'\n", ["amqp.frame_max: got '100 apples'", "64MiB"]),
        ("[server]\nhandshake_timeout = 0\n", ["server.handshake_timeout: got 0", "more than 0"]),
        ("[server]\nlog_level = 'loud'\n", ["server.log_level: got 'loud'", '"debug", "info", "warning", "error"']),
        ("[limits]\nmemory_high_watermark = '120%'\n", ["limits.memory_high_watermark", "a fraction"]),
        ("[auth]\nmechanisms = ['PLAIN', 'GSSAPI']\n", ["auth.mechanisms", 'a list of "SCRAM-SHA-512", "SCRAM-SHA-256"']),
        ("[auth]\nmechanisms = []\n", ["'auth.mechanisms' is empty"]),
        (
            "[auth]\nmechanisms = ['ANONYMOUS']\n",
            ["'auth.mechanisms' contains ANONYMOUS", "expected 'auth.anonymous_user'"],
        ),
        ("[auth]\nmechanisms = ['EXTERNAL']\n", ["'auth.mechanisms' contains EXTERNAL", "expected 'tls.verify'"]),
        ("[tls]\nkey = 'x'\n", ["'tls.key' is set without 'tls.cert'"]),
        ("[tls]\nverify = 'required'\n", ["'tls.verify' is set without 'tls.cert'"]),
        ("[tls]\ncert = 'x'\nverify = 'optional'\n", ["'tls.verify' is 'optional' without 'tls.ca'"]),
        ("[server]\nplain = false\n", ["'server.plain' is false, which leaves no listener"]),
        ("[users.a]\npassword = ''\n", ["'users.a.password' is empty"]),
        (
            "[users.a]\npassword = 'x'\npassword_file = 'y'\n",
            ["'users.a' has password and password_file; expected only one"],
        ),
        ("[users.a]\npassword_hash = 'x'\n", ["'users.a.password_hash' is not an argon2id hash"]),
        ("[users.'']\npassword = 'x'\n", ["1 to 255 bytes"]),
        ("[vhosts.'']\n", ["1 to 255 bytes"]),
        ("[server\n", ["invalid TOML", "line 1"]),
    ],
)
def test_an_error_in_the_file_names_the_setting(tmp_path: Path, text: str, words: list[str]) -> None:
    message = error(tmp_path, text)
    for word in [str(tmp_path / "leveret.toml"), *words]:
        assert word in message


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("LEVERET_SERVER__PROT", "1", ["unknown setting 'server.prot'", "did you mean 'server.port'?"]),
        ("LEVERET_SERVER_PORT", "1", ["two underscores", "LEVERET_SERVER__PORT"]),
        ("LEVERET_SERVER", "1", ["two underscores"]),
        ("LEVERET_SERVER__PORT", "x", ["server.port: got 'x'"]),
        ("LEVERET_SERVER__PORT__LOW", "1", ["'server.port' is not a table and has no key 'low'"]),
        ("LEVERET_USERS__A__PERMISSIONS", "x", ["users.A.permissions", "a TOML table"]),
        ("LEVERET_AUTH__MECHANISMS", "[PLAIN", ["auth.mechanisms"]),
        ("LEVERET_SERVER__PLAIN", "perhaps", ["server.plain: got 'perhaps', expected true or false"]),
    ],
)
def test_an_error_in_the_environment_names_the_variable(tmp_path: Path, name: str, value: str, words: list[str]) -> None:
    message = error(tmp_path, environment={name: value})
    for word in [f"environment variable {name}", *words]:
        assert word in message


def test_an_error_in_a_flag_names_the_flag(tmp_path: Path) -> None:
    assert "--set: server.port: got 'x'" in error(tmp_path, flags=[("server.port", "x")])
    assert "invalid setting name" in error(tmp_path, flags=[("server port", "x")])


def test_single_underscores_in_a_section_of_two_words(tmp_path: Path) -> None:
    assert "as in LEVERET_SINK_TRANSACTIONS__TIMEOUT" in error(
        tmp_path, environment={"LEVERET_SINK_TRANSACTIONS_TIMEOUT": "1"}
    )


@pytest.mark.parametrize(("old", "new"), RENAMED_SETTINGS.items())
def test_a_renamed_setting_is_refused_with_its_new_name(tmp_path: Path, old: str, new: str) -> None:
    expected = f"unknown setting '{old}': it was renamed to '{new}'"
    section, _, key = old.partition(".")
    assert error(tmp_path, f"[{section}]\n" + (f"{key} = 1\n" if key else "")).endswith(expected)
    variable = f"LEVERET_{section}__{key or 'KEY'}".upper()
    assert error(tmp_path, environment={variable: "1"}) == f"environment variable {variable}: {expected}"
    assert error(tmp_path, flags=[(old, "1")]) == f"--set: {expected}"
    with pytest.raises(ConfigError) as caught:
        combine_config(("table", {section: {key: 1} if key else {}}))
    assert str(caught.value) == f"table: {expected}"
    table = schema_of(Config, CHOICES)
    for word in new.split("."):
        node = table.keys[word]
        if isinstance(node, Table):
            table = node
    assert node.name == new.rpartition(".")[2]


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("LEVERET_STAGING_TIMEOUT", "LEVERET_STAGING__TIMEOUT"),
        ("LEVERET_STAGES", "LEVERET_STAGES__KEY"),
    ],
)
def test_a_renamed_section_with_a_single_underscore_is_refused(tmp_path: Path, variable: str, expected: str) -> None:
    assert expected in error(tmp_path, environment={variable: "1"})


def test_a_password_is_never_shown(tmp_path: Path) -> None:
    assert "12345" not in error(tmp_path, "[users.a]\npassword = 12345\n")


def test_an_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: cannot read the configuration file: No such file"):
        load(tmp_path / "missing.toml", {})
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(tmp_path / "latin.toml", {})


def test_the_configuration_page_is_up_to_date(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    assert page.read_text("utf-8") == document(), "run `python tools/document_configuration.py docs/configuration.md`"


def test_check_compares_the_page(tmp_path: Path) -> None:
    page = tmp_path / "configuration.md"
    assert main(["--check", str(page)]) == 1
    assert main([str(page)]) == 0
    assert main(["--check", str(page)]) == 0


def test_the_example_of_the_page_loads(tmp_path: Path) -> None:
    example = document().split("```toml\n")[1].split("```")[0]
    config = load(write(tmp_path, example), {})
    assert config.users["shop"].permissions["orders"].write == r"^(shop-|amq\.topic$)"


# Tables of an embedding program


def test_a_later_layer_overrides_single_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVERET_SERVER__PORT", "9")
    file = write(tmp_path, "[server]\nport = 2\nhost = 'file'\n[vhosts.a]\nlimits.max_queues = 1\n")
    config = combine_config(
        ("default", {"server": {"port": 1, "log_level": "error"}}),
        ("file", file),
        ("argument", {"server": {"host": "argument", "data_dir": tmp_path}, "auth": {"mechanisms": ("PLAIN",)}}),
    )
    assert (config.server.port, config.server.host, config.server.log_level) == (2, "argument", "error")
    assert config.server.data_dir == str(tmp_path)
    assert config.auth.mechanisms == ["PLAIN"]
    assert config.vhosts["a"].limits.max_queues == 1


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.example.com",
        "ftp://hooks.example.com/",
        "https://user:secret@hooks.example.com/",
        "https://hooks.example.com:70000/",
        "https://hooks.example.com:0/",
        "https://hooks.example.com/a b",
        "https://hooks.example.com/\r\nHost: x",
        "https://hooks.example.com/#part",
        "https://[::1::2]/",
    ],
)
def test_a_webhook_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"(?s)'management\.alert_webhooks' has '.*'; expected a URL such as https"):
        combine_config(("table", {"management": {"alert_webhooks": [url]}}))


def test_networks_of_shovels() -> None:
    with pytest.raises(ConfigError, match=r"'management\.shovel_networks' has '10\.0\.0\.1/8'.*expected a network"):
        combine_config(("table", {"management": {"shovel_networks": ["10.0.0.1/8"]}}))


@pytest.mark.parametrize(
    ("webhook", "expected"),
    [
        ({}, "'management.webhooks.ops.url' is ''; expected a URL"),
        ({"url": "ftp://hooks.example.com/"}, "expected a URL"),
        ({"url": "https://known.example.com/"}, "configured twice"),
        ({"url": "http://hooks.example.com/", "headers_file": "x"}, "expected a URL that begins with https://"),
        ({"url": "https://hooks.example.com/", "networks": ["10.0.0.1/8"]}, "expected a network such as 10.1.0.0/16"),
    ],
)
def test_a_webhook_that_cannot_be_used_is_refused(webhook: dict[str, object], expected: str) -> None:
    table = {"management": {"alert_webhooks": ["https://known.example.com/"], "webhooks": {"ops": webhook}}}
    with pytest.raises(ConfigError, match=re.escape(expected)):
        combine_config(("table", table))


def test_a_webhook_with_headers() -> None:
    webhook = {"url": "http://127.0.0.1:80/", "headers_file": "x", "networks": ["127.0.0.0/8", "::1"]}
    found = combine_config(("table", {"management": {"webhooks": {"ops": webhook}}})).management.webhooks["ops"]
    assert found.networks == ["127.0.0.0/8", "::1"]


MAIL = {"host": "mail.example.com", "sender": "leveret@example.com", "recipients": ["example.com"]}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sender": ""}, "'management.mail.sender' is ''; expected an address"),
        ({"sender": "Leveret <leveret@example.com>"}, "expected an address"),
        ({"sender": "leveret@example.com\nBcc: x@example.com"}, "expected an address"),
        ({"recipients": []}, "'management.mail.recipients' is empty"),
        ({"recipients": ["example.com", "*"]}, "'management.mail.recipients' has '*'"),
        ({"recipients": ["@example.com"]}, "expected an address such as ops@example.com, or a domain"),
        ({"user": "leveret"}, "'management.mail.user' and 'management.mail.password_file' belong together"),
        ({"user": "leveret", "password_file": "x", "security": "none"}, "expected 'starttls' or 'tls'"),
    ],
)
def test_a_mail_server_that_cannot_be_used_is_refused(changes: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(expected)):
        combine_config(("table", {"management": {"mail": MAIL | changes}}))


def test_a_mail_server() -> None:
    found = combine_config(("table", {"management": {"mail": MAIL}})).management.mail
    assert (found.port, found.security, found.recipients) == (587, "starttls", ["example.com"])


def test_urls_of_webhooks() -> None:
    urls = ["https://hooks.example.com/a/b?c=d", "http://127.0.0.1:8080", "http://[::1]:8080/x"]
    assert combine_config(("table", {"management": {"alert_webhooks": urls}})).management.alert_webhooks == urls


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"sever": {}}, "broker's table: unknown setting 'sever': did you mean 'server'?"),
        ({"server": {"prt": 1}}, "unknown setting 'server.prt': did you mean 'server.port'?"),
        ({"server": {"port": "x"}}, "server.port: got 'x', expected an integer, 0 to 65535"),
        ({"server": 5}, "server: got 5, expected a table"),
        ({"server": {5: 5}}, "server has the key 5, expected a string"),
        ({5: {}}, "the configuration has the key 5, expected a string"),
        ({"auth": {"mechanisms": []}}, "broker's table: 'auth.mechanisms' is empty"),
    ],
)
def test_an_error_in_a_table_names_the_setting(table: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        combine_config(("broker's table", table))
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("storage", "expected"),
    [
        ({"engine": "postgresql"}, "expected 'storage.dsn' or 'storage.dsn_file' to name the database"),
        ({"dsn": "postgresql://"}, "'storage.dsn' is set, but 'storage.engine' is 'sqlite'; expected 'postgresql'"),
        ({"engine": "postgresql", "dsn": "a", "dsn_file": "b"}, "'storage.dsn' and 'storage.dsn_file' are set"),
        ({"engine": "postgresql", "dsn": "a", "synchronous": "extra"}, "'storage.synchronous' is 'extra', which"),
        ({"engine": "postgresql", "dsn": 5}, "storage.dsn: got a value of type int, expected a string"),
    ],
)
def test_the_address_of_a_database_belongs_to_its_engine(storage: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        combine_config(("table", {"storage": storage}))
    assert expected in str(caught.value)


def test_a_directory_of_uploads_belongs_to_postgresql() -> None:
    uploads = {"directory": "/mnt/uploads"}
    with pytest.raises(ConfigError, match=r"'uploads\.directory' is set, but .* is 'sqlite'; expected 'postgresql'"):
        combine_config(("table", {"uploads": uploads}))
    storage = {"engine": "postgresql", "dsn": "postgresql://"}
    assert combine_config(("table", {"uploads": uploads, "storage": storage})).uploads.directory == "/mnt/uploads"


@pytest.mark.parametrize("text", ["3", "'3'"])
def test_the_number_of_shards(tmp_path: Path, text: str) -> None:
    assert load(write(tmp_path, f"[cluster]\nshards = {text}"), {}).cluster.shards == 3


def test_auto_is_one_shard_for_each_usable_core(tmp_path: Path) -> None:
    assert load(None, {"LEVERET_CLUSTER__SHARDS": "auto"}).cluster.shards == min(usable_cores(), 16)
    limit = tmp_path / "cpu.max"
    limit.write_text("max 100000\n")
    everything = usable_cores(limit)
    limit.write_text("50000 100000\n")
    assert usable_cores(limit) == 1
    limit.write_text("9900000000 100000\n")
    assert usable_cores(limit) == everything


@pytest.mark.parametrize(("text", "shown"), [("0", "0"), ("65", "65"), ("many", "'many'"), ("1.5", "'1.5'")])
def test_an_invalid_number_of_shards_is_refused(tmp_path: Path, text: str, shown: str) -> None:
    assert error(tmp_path, flags=[("cluster.shards", text)]) == (
        f'--set: cluster.shards: got {shown}, expected "auto" or an integer, 1 to 64'
    )


@pytest.mark.parametrize("path", ["ws", "", "/a b", "/a?b", "/ü"])
def test_an_invalid_path_of_websockets(tmp_path: Path, path: str) -> None:
    found = error(tmp_path, f'[websocket]\npath = "{path}"')
    assert f"'websocket.path' is '{path}'; expected a path such as /ws" in found


@pytest.mark.parametrize("origin", ["shop.example.com", "https://shop.example.com/", "ftp://a", "null"])
def test_an_invalid_origin_of_websockets(tmp_path: Path, origin: str) -> None:
    found = error(tmp_path, f'[websocket]\nallowed_origins = ["*", "{origin}"]')
    assert f"'websocket.allowed_origins' has '{origin}'; expected an origin such as https://id.example.com" in found


@pytest.mark.parametrize("network", ["proxy.example.com", "10.1.2.3/16"])
def test_an_invalid_network_of_proxies(tmp_path: Path, network: str) -> None:
    found = error(tmp_path, f'[websocket]\ntrusted_proxies = ["127.0.0.1", "::1/128", "{network}"]')
    assert f"'websocket.trusted_proxies' has '{network}'" in found


@pytest.mark.parametrize("network", ["0.0.0.0/0", "::/0"])
def test_every_address_as_a_proxy(tmp_path: Path, network: str) -> None:
    found = error(tmp_path, f'[websocket]\ntrusted_proxies = ["127.0.0.1", "{network}"]')
    assert f"'websocket.trusted_proxies' has '{network}', so that every client could name any address" in found


def test_websockets_only_with_tls_but_without_a_certificate(tmp_path: Path) -> None:
    found = error(tmp_path, "[websocket]\nenabled = true\nplain = false")
    assert "'websocket.enabled' is true, but 'websocket.plain' (or 'server.plain') is false; expected 'tls.cert'" in found


@pytest.mark.parametrize("name", ["key", "ca", "key_password_file"])
def test_cluster_tls_without_a_certificate(tmp_path: Path, name: str) -> None:
    found = error(tmp_path, f'[cluster.tls]\n{name} = "file"')
    assert f"'cluster.tls.{name}' is set without 'cluster.tls.cert'; expected 'cluster.tls.cert' to name" in found


def test_cluster_tls_without_a_ca(tmp_path: Path) -> None:
    found = error(tmp_path, '[cluster.tls]\ncert = "file"')
    assert "'cluster.tls.cert' is set without 'cluster.tls.ca'; expected 'cluster.tls.ca' to name" in found

"""`leveret migrate --conf`: configurations for RabbitMQ as people write them, converted, checked and served."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leveret import sync
from leveret.cli.app import leveret
from leveret.config import combine_config
from leveret.config.flat import flat_settings
from leveret.node.choices import CHOICES
from tests.security.certificates import Authority
from tests.support.broker import LeveretProcess, free_port

HOST = {"server.host": ""}
ADMIN = {"users.app.tags": ["administrator"]}
ALL = {"configure": ".*", "write": ".*", "read": ".*"}

# The lines of a file, the settings that differ from the defaults, and the beginnings of the lines that have no counterpart.
FILES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("# nothing is set\n\n", HOST, []),
    (
        "consumer_timeout = 86400000\nframe_max = 0 # unlimited\nmax_message_size = 536870912\n",
        HOST | {'vhosts."/".consumer_timeout': 86400.0, "amqp.frame_max": 2147483647, "amqp.max_message_size": 536870912},
        [],
    ),
    (
        "heartbeat=30\nchannel_max = 128\nhandshake_timeout = 1500\nconnection_max = infinity\nconnection_max = 10\n",
        HOST | {"amqp.heartbeat": 30, "amqp.channel_max": 128, "server.handshake_timeout": 1.5, "limits.connections": 10},
        ["line 4: connection_max = infinity"],
    ),
    (
        "loopback_users = none\nvm_memory_high_watermark.relative = 0.6\nvm_memory_high_watermark.absolute = 1GB\n",
        HOST | {"auth.loopback_users": [], "limits.memory_high_watermark": 0.6},
        ["line 3: vm_memory_high_watermark.absolute = 1GB"],
    ),
    (
        "vm_memory_high_watermark.absolute = 1.5GB\ndisk_free_limit.absolute = 500MiB\n"
        "vm_memory_high_watermark_paging_ratio = 0.5\n",
        HOST | {"limits.memory_high_watermark": 1.5e9, "limits.disk_free": 524288000},
        ["line 3: vm_memory_high_watermark_paging_ratio"],
    ),
    ("loopback_users.guest = true\nloopback_users.a\\.b = true\n", HOST | {"auth.loopback_users": ["guest", "a.b"]}, []),
    (
        "default_user = app\ndefault_pass = 'a#b' # quoted\ndefault_vhost = shop\ndefault_permissions.write = ^(?=x)\n"
        "default_user_tags.monitoring = true\ndefault_user_tags.administrator = false\n",
        HOST
        | {
            "users.app.password": "***",
            "users.app.tags": ["monitoring"],
            "users.app.permissions.shop.configure": ".*",
            "users.app.permissions.shop.read": ".*",
        },
        ["line 4: default_permissions.write"],
    ),
    (
        "default_user = app\ndefault_pass = $(PASSWORD)\n",
        HOST | ADMIN | {f'users.app.permissions."/".{kind}': pattern for kind, pattern in ALL.items()},
        ["line 1: default_user = app", "line 2: default_pass = ***"],
    ),
    (
        "listeners.tcp.local = 127.0.0.1:5673\nlisteners.tcp.local_v6 = ::1:5673\nlisteners.tcp.other = 10.0.0.1:5674\n",
        {"server.port": 5673},
        ["line 3: listeners.tcp.other"],
    ),
    ("listeners.tcp.1 = :::5675\n", HOST | {"server.port": 5675}, []),
    (
        "listeners.tcp = none\nlisteners.ssl.default = 5671\nssl_options.keyfile = /k\n",
        HOST,
        ["line 1: listeners.tcp = none", "line 2: listeners.ssl.default", "line 3: ssl_options.keyfile"],
    ),
    (
        "listeners.tcp = none\nlisteners.ssl.default = 10.0.0.1:5681\nssl_options.cacertfile = /ca\n"
        "ssl_options.certfile = /c\n"
        "ssl_options.keyfile = /k\nssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = true\n"
        "ssl_options.versions.1 = tlsv1.3\nssl_options.password = secret\nssl_options.ciphers.1 = X\n"
        "auth_mechanisms.1 = EXTERNAL\nauth_mechanisms.2 = RABBIT-CR-DEMO\nssl_cert_login_from = common_name\n",
        HOST
        | {
            "server.plain": False,
            "tls.host": "10.0.0.1",
            "tls.port": 5681,
            "tls.ca": "/ca",
            "tls.cert": "/c",
            "tls.key": "/k",
            "tls.verify": "required",
            "tls.min_version": "1.3",
            "auth.mechanisms": ["EXTERNAL"],
        },
        ["line 9: ssl_options.password = ***", "line 10: ssl_options.ciphers.1", "line 12: auth_mechanisms.2"],
    ),
    (
        "log.console = true\nlog.file = false\nlog.console.level = notice\nlog.file.level = info\n"
        "log.default.level = debug\n"
        "log.console.formatter = json\nlog.file.rotation.size = 10\n",
        HOST | {"server.log_format": "json"},
        ["line 5: log.default.level", "line 7: log.file.rotation.size"],
    ),
    (
        "management.tcp.port = 15673\nmanagement.tcp.ip = 127.0.0.1\nmanagement.path_prefix = /mq/\n"
        "management.rates_mode = none\n"
        "management.cors.allow_origins.1 = https://a.example\nmanagement.login_session_timeout = 60\n"
        "prometheus.tcp.port = 9419\n",
        HOST
        | {
            "management.port": 15673,
            "management.host": "127.0.0.1",
            "management.path_prefix": "/mq",
            "management.cors_origins": ["https://a.example"],
            "management.session_timeout": 3600.0,
            "management.metrics_port": 9419,
        },
        ["line 4: management.rates_mode"],
    ),
    (
        "management.tcp.port = 15672\nmanagement.ssl.certfile = /c\nmanagement.ssl.keyfile = /k\n"
        "management.ssl.cacertfile = /a\n",
        HOST | {"management.host": "", "management.port": 15671, "management.tls_cert": "/c", "management.tls_key": "/k"},
        ["line 1: management.tcp.port", "line 4: management.ssl.cacertfile"],
    ),
    (
        "management.listener.port = 15674\nmanagement.listener.ssl = false\n",
        HOST | {"management.host": "", "management.port": 15674},
        [],
    ),
    (
        "definitions.import_backend = local_filesystem\ndefinitions.local.path = /d.json\n",
        HOST | {"management.load_definitions": "/d.json"},
        [],
    ),
    (
        "auth_backends.1 = oauth2\nauth_backends.2 = internal\nauth_backends.3.authn = ldap\nauth_ldap.servers.1 = x\n"
        "auth_oauth2.resource_server_id = rabbitmq\nauth_oauth2.issuer = https://id.example\n"
        "auth_oauth2.verify_aud = false\n"
        "auth_oauth2.preferred_username_claims.1 = email\nmanagement.oauth_enabled = true\n"
        "management.oauth_client_id = c\n",
        HOST
        | {
            "auth.oauth.resource_server_id": "rabbitmq",
            "auth.oauth.issuer": "https://id.example",
            "auth.oauth.username_claims": ["email"],
            "management.oauth_client_id": "c",
            "management.host": "",
        },
        ["line 3: auth_backends.3.authn", "line 4: auth_ldap.servers.1", "line 7: auth_oauth2.verify_aud"],
    ),
    (
        "default_queue_type = quorum\nanonymous_login_user = none\nreverse_dns_lookups = false\nproxy_protocol = true\n",
        HOST | {'vhosts."/".default_queue_type': "quorum", "amqp10.anonymous_user": ""},
        ["line 4: proxy_protocol = true"],
    ),
    (
        "cluster_name = a\ncluster_formation.peer_discovery_backend = dns\ncluster_partition_handling = autoheal\n"
        "collect_statistics_interval = 5000\nmqtt.listeners.tcp.1 = 1883\ninclude conf.d/a.conf\n"
        "heartbeat = soon\nunknown = 1\n"
        "auth_ldap.queries.tags = '''\n[{administrator, {constant, true}}]\n'''\ndefault_pass =\n",
        HOST,
        [
            "line 1: cluster_name",
            "line 2: cluster_formation",
            "line 3: cluster_part",
            "line 4: collect",
            "line 5: mqtt",
            "line 6: include",
            "line 7: heartbeat = soon",
            "line 8: unknown",
            "line 9: auth_ldap.queries.tags",
            "line 12: default_pass",
        ],
    ),
]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(leveret, ["migrate", *map(str, arguments)])


def converted(path: Path) -> Result:
    result = run("--conf", path)
    assert result.exit_code == 0, result.output
    return result


def not_converted(toml: str) -> list[str]:
    return [line.removeprefix("# ") for line in toml.splitlines() if line.startswith("# line ")]


@pytest.mark.parametrize(("text", "changed", "left"), FILES, ids=[text.split(" ")[0] for text, _, _ in FILES])
def test_a_file_is_converted(tmp_path: Path, text: str, changed: dict[str, Any], left: list[str]) -> None:
    path = tmp_path / "rabbitmq.conf"
    path.write_text(text, "utf-8")
    result = converted(path)
    config = combine_config(("the output", tomllib.loads(result.stdout)), choices=CHOICES)
    defaults = flat_settings(combine_config())
    shown = {name: value for name, value in flat_settings(config).items() if value != defaults.get(name)}
    assert changed.items() <= shown.items()
    # Settings of users and vhosts have no defaults; what they lack is as in the table.
    assert {name for name in shown if not name.startswith(("users.", "vhosts."))} <= changed.keys()
    found = not_converted(result.stdout)
    assert len(found) == len(left)
    for line, beginning in zip(found, left, strict=True):
        assert line.startswith(beginning)
    assert [line.strip().split(":")[0] for line in result.stderr.splitlines()[1:]] == [line.split(":")[0] for line in found]
    assert "secret" not in result.stderr


def test_the_converted_configuration_is_served(tmp_path: Path) -> None:
    """With TLS, a user, definitions and limits, as RabbitMQ's file asks for."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("localhost")
    definitions = {"vhosts": [{"name": "shop"}], "queues": [{"name": "orders", "vhost": "shop", "durable": True}]}
    (tmp_path / "definitions.json").write_text(json.dumps(definitions), "utf-8")
    plain, tls = free_port(), free_port()
    path = tmp_path / "rabbitmq.conf"
    path.write_text(
        f"listeners.tcp.default = 127.0.0.1:{plain}\nlisteners.ssl.default = 127.0.0.1:{tls}\n"
        f"ssl_options.certfile = {certificate}\nssl_options.keyfile = {key}\nssl_options.cacertfile = {authority.path}\n"
        "ssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = false\n"
        "default_user = app\ndefault_pass = 's3#cret'\ndefault_vhost = shop\nheartbeat = 17\n"
        f"load_definitions = {tmp_path / 'definitions.json'}\ncluster_partition_handling = autoheal\n",
        "utf-8",
    )
    toml = converted(path).stdout
    checked = tmp_path / "checked.toml"
    checked.write_text(toml, "utf-8")
    result = CliRunner().invoke(leveret, ["config", "check", "--config", str(checked)])
    assert result.output == "the configuration is valid\n"
    process = LeveretProcess(tmp_path / "broker", config=toml)
    process.port = plain
    with process.start():
        uri = f"amqps://app:s3%23cret@localhost:{tls}/shop?cacertfile={authority.path}"
        with sync.connect(uri) as connection, connection.channel() as channel:
            assert channel.declare_queue("orders", passive=True).name == "orders"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "rabbitmq.conf",
            "listeners.tcp.default = 5672\ndefault_user = x\n",
            "RabbitMQ's format.*`leveret migrate --conf ",
        ),
        (
            "valid-toml.conf",
            "heartbeat = 60\nloopback_users.guest = false\n",
            "RabbitMQ's format.*`leveret migrate --conf ",
        ),
        ("shared-name.conf", "management.load_definitions = /d.json\n", "RabbitMQ's format"),
        ("advanced.config", "%% old\n[\n {rabbit, [{tcp_listeners, [5672]}]}\n].\n", "Erlang terms.*advanced.config"),
        ("definitions.json", '{"users": [], "queues": []}', "definitions, in JSON.*management.load_definitions"),
        ("other.json", "{}", "the file is JSON; expected TOML"),
    ],
)
def test_serve_recognizes_files_of_rabbitmq(tmp_path: Path, name: str, text: str, words: str) -> None:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    result = CliRunner().invoke(leveret, ["serve", "--config", str(path), "--data-dir", str(tmp_path / "data")])
    assert result.exit_code != 0
    assert "invalid TOML" not in result.output
    assert re.search(words, result.output.replace("\n", " "))


@pytest.mark.parametrize("text", ["[amqp]\nheartbeat = 17\n", 'management.path_prefix = "/a"\n', "amqp.heartbeat = 17\n"])
def test_a_configuration_of_leveret_is_not_taken_for_that_of_rabbitmq(tmp_path: Path, text: str) -> None:
    path = tmp_path / "leveret.toml"
    path.write_text(text, "utf-8")
    assert combine_config(("file", path)) != combine_config()


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_is_recognized(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "rabbitmq.conf"
    path.write_text("heartbeat = 17\n", encoding)
    toml = tmp_path / "leveret.toml"
    toml.write_text(converted(path).stdout, encoding)
    assert combine_config(("file", toml)).amqp.heartbeat == 17


def test_what_cannot_be_converted(tmp_path: Path) -> None:
    missing = run("--conf", tmp_path / "missing.conf")
    assert (missing.exit_code, "No such file" in missing.output) == (1, True)
    path = tmp_path / "advanced.config"
    path.write_text("[{rabbit, []}].\n")
    assert (run("--conf", path).exit_code, "Erlang terms" in run("--conf", path).output) == (1, True)
    path.write_bytes(b"heartbeat = 60\n# caf\xe9\n")
    assert "line 2, column 6: not UTF-8" in run("--conf", path).output
    assert "--conf takes no other options" in run("--conf", path, "--json").output
    assert "expected --from URL or --conf FILE" in run().output

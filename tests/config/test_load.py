"""Reading the configuration: precedence, notations, and a refusal for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.config import Config, ConfigError, combine_config, load_config
from leveret.config.document import document, main


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "leveret.toml"
    path.write_text(text, "utf-8")
    return path


def refusal(tmp_path: Path, text: str = "", environment: dict[str, str] | None = None,
            flags: list[tuple[str, str]] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text), environment or {}, flags or [])
    return str(caught.value)


def test_nothing_configured_is_the_default() -> None:
    assert load_config(None, {}) == Config()


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[server]\nport = 1\nhost = 'file'\nlog_level = 'error'\n")
    environment = {"LEVERET_SERVER__PORT": "2", "LEVERET_SERVER__HOST": "environment"}
    config = load_config(path, environment, [("server.port", "3")])
    assert (config.server.port, config.server.host, config.server.log_level) == (3, "environment", "error")


def test_the_later_of_two_flags_wins() -> None:
    assert load_config(None, {}, [("server.port", "3"), ("server.port", "4")]).server.port == 4


@pytest.mark.parametrize(("text", "octets"), [
    ("8192", 8192), ("'8192'", 8192), ("'8k'", 8192), ("'8KiB'", 8192), ("'8 kb'", 8000), ("'1.5MiB'", 1572864),
])
def test_octets_take_units(tmp_path: Path, text: str, octets: int) -> None:
    assert load_config(write(tmp_path, f"[amqp]\nframe_max = {text}\n"), {}).amqp.frame_max == octets


@pytest.mark.parametrize(("text", "value"), [
    ("0.5", 0.5), ("'50%'", 0.5), ("1", 1.0), ("'2GiB'", 2.0 * 2**30), ("1000000", 1000000.0), ("0", 0.0),
])
def test_the_watermark_is_a_share_or_octets(tmp_path: Path, text: str, value: float) -> None:
    config = load_config(write(tmp_path, f"[limits]\nmemory_high_watermark = {text}\n"), {})
    assert config.limits.memory_high_watermark == value


@pytest.mark.parametrize(("text", "seconds"), [("3", 3.0), ("0.25", 0.25), ("'250ms'", 0.25), ("'2min'", 120.0)])
def test_seconds_take_units(tmp_path: Path, text: str, seconds: float) -> None:
    config = load_config(write(tmp_path, f"[server]\nhandshake_timeout = {text}\n"), {})
    assert config.server.handshake_timeout == seconds


def test_paths_start_at_the_file_that_names_them(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "[server]\ndata_dir = 'data'\n"), {})
    assert config.server.data_path == tmp_path / "data"


def test_paths_of_flags_start_at_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config(None, {}, [("server.data_dir", "here")]).server.data_path == tmp_path / "here"


def test_the_home_directory_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Config().server.data_path == tmp_path / ".local/share/leveret"
    assert load_config(None, {"LEVERET_SERVER__DATA_DIR": "~/x"}).server.data_path == tmp_path / "x"


def test_users_and_vhosts_have_free_names(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, """
        [users.alice]
        password = "secret"
        tags = ["administrator"]
        permissions."/" = { configure = ".*", write = "^a", read = "" }
        [users."bob@example.org"]
        [vhosts.strict]
        compat.strict = true
        limits.max_queues = 7
    """), {"LEVERET_USERS__Carol__TAGS": "one, two"}, [('users."d.e".password', "x=y")])
    alice = config.users["alice"]
    assert (alice.password, alice.tags, alice.permissions["/"].write) == ("secret", ["administrator"], "^a")
    assert config.users["bob@example.org"].password is None
    assert config.users["Carol"].tags == ["one", "two"]
    assert config.users["d.e"].password == "x=y"
    assert (config.vhosts["strict"].compat.strict, config.vhosts["strict"].limits.max_queues) == (True, 7)


def test_a_table_from_the_environment_is_toml() -> None:
    config = load_config(None, {"LEVERET_USERS__ALICE__PERMISSIONS": '{"/" = {configure = ".*"}}'})
    assert config.users["ALICE"].permissions["/"].configure == ".*"


def test_other_variables_of_the_prefix_are_not_keys() -> None:
    assert load_config(None, {"LEVERET_CONFIG": "x", "LEVERET_PURE": "1"}) == Config()


@pytest.mark.parametrize("text", ["true", "Yes", "ON", "1"])
def test_truth_in_text(text: str) -> None:
    assert load_config(None, {"LEVERET_VHOSTS__a__COMPAT__STRICT": text}).vhosts["a"].compat.strict is True


@pytest.mark.parametrize(("text", "words"), [
    ("[server]\nprot = 1\n", ["unknown key server.prot", "did you mean server.port?"]),
    ("[serve]\nport = 1\n", ["unknown key serve", "did you mean server?"]),
    ("[server]\nframe_max = 1\n", ["unknown key server.frame_max", "did you mean amqp.frame_max?"]),
    ("[server]\nzzz = 1\n", ["unknown key server.zzz", "known here: compat, data_dir,"]),
    ("[users.alice]\npasword = 'x'\n", ["unknown key users.alice.pasword", "did you mean users.alice.password?"]),
    ("[users.alice.permissions.'/']\nwite = 'x'\n",
     ['unknown key users.alice.permissions."/".wite', 'did you mean users.alice.permissions."/".write?']),
    ("[vhosts.v.compat]\nstrikt = true\n", ["did you mean vhosts.v.compat.strict?"]),
    ("[server]\nport = 'x'\n", ["server.port: got 'x'", "expected a whole number, 0 to 65535"]),
    ("[server]\nport = 65536\n", ["server.port: got 65536", "0 to 65535"]),
    ("[server]\nport = true\n", ["server.port: got True"]),
    ("[server]\nport = { a = 1 }\n", ["server.port", "expected a whole number"]),
    ("server = 1\n", ["server: got 1, expected a table"]),
    ("[amqp]\nframe_max = 100\n", ["amqp.frame_max: got 100", "4096 to 2147483647"]),
    ("[amqp]\nframe_max = '100 apples'\n", ["amqp.frame_max: got '100 apples'", "64MiB"]),
    ("[server]\nhandshake_timeout = 0\n", ["server.handshake_timeout: got 0", "more than 0"]),
    ("[server]\nlog_level = 'loud'\n", ["server.log_level: got 'loud'", '"debug", "info", "warning", "error"']),
    ("[limits]\nmemory_high_watermark = '120%'\n", ["limits.memory_high_watermark", "a share"]),
    ("[auth]\nmechanisms = ['PLAIN', 'GSSAPI']\n", ["auth.mechanisms", 'a list of "SCRAM-SHA-512", "SCRAM-SHA-256"']),
    ("[auth]\nmechanisms = []\n", ["auth.mechanisms is empty"]),
    ("[auth]\nmechanisms = ['ANONYMOUS']\n", ["auth.anonymous_user"]),
    ("[auth]\nmechanisms = ['EXTERNAL']\n", ["tls.verify"]),
    ("[tls]\nkey = 'x'\n", ["tls.key without tls.cert"]),
    ("[tls]\nverify = 'required'\n", ["tls.verify without tls.cert"]),
    ("[tls]\ncert = 'x'\nverify = 'optional'\n", ['tls.verify = "optional" without tls.ca']),
    ("[server]\nplain = false\n", ["leaves no listener"]),
    ("[users.a]\npassword = ''\n", ["users.a.password is empty"]),
    ("[users.a]\npassword = 'x'\npassword_file = 'y'\n", ["users.a has password and password_file; expected one"]),
    ("[users.a]\npassword_hash = 'x'\n", ["users.a.password_hash: expected an argon2id hash"]),
    ("[users.'']\npassword = 'x'\n", ["1 to 255 octets"]),
    ("[vhosts.'']\n", ["1 to 255 octets"]),
    ("[server\n", ["not valid TOML", "line 1"]),
])
def test_a_mistake_in_the_file_is_refused_by_name(tmp_path: Path, text: str, words: list[str]) -> None:
    message = refusal(tmp_path, text)
    for word in [str(tmp_path / "leveret.toml"), *words]:
        assert word in message


@pytest.mark.parametrize(("name", "value", "words"), [
    ("LEVERET_SERVER__PROT", "1", ["unknown key server.prot", "did you mean server.port?"]),
    ("LEVERET_SERVER_PORT", "1", ["two underscores", "LEVERET_SERVER__PORT"]),
    ("LEVERET_SERVER", "1", ["two underscores"]),
    ("LEVERET_SERVER__PORT", "x", ["server.port: got 'x'"]),
    ("LEVERET_SERVER__PORT__LOW", "1", ["server.port is a single value"]),
    ("LEVERET_USERS__A__PERMISSIONS", "x", ["users.A.permissions", "a TOML table"]),
    ("LEVERET_AUTH__MECHANISMS", "[PLAIN", ["auth.mechanisms"]),
    ("LEVERET_SERVER__PLAIN", "perhaps", ["server.plain: got 'perhaps', expected true or false"]),
])
def test_a_mistake_in_the_environment_is_refused(tmp_path: Path, name: str, value: str, words: list[str]) -> None:
    message = refusal(tmp_path, environment={name: value})
    for word in [f"environment variable {name}", *words]:
        assert word in message


def test_a_mistake_in_a_flag_is_refused_by_name(tmp_path: Path) -> None:
    assert "flag server.port: server.port: got 'x'" in refusal(tmp_path, flags=[("server.port", "x")])
    assert "not a key" in refusal(tmp_path, flags=[("server port", "x")])


def test_a_password_is_never_shown(tmp_path: Path) -> None:
    assert "12345" not in refusal(tmp_path, "[users.a]\npassword = 12345\n")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: the configuration file cannot be read: No such file"):
        load_config(tmp_path / "missing.toml", {})
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(tmp_path / "latin.toml", {})


def test_the_page_of_the_keys_is_current(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    assert page.read_text("utf-8") == document(), "run `python -m leveret.config.document docs/configuration.md`"


def test_the_check_of_the_page_tells(tmp_path: Path) -> None:
    page = tmp_path / "configuration.md"
    assert main(["--check", str(page)]) == 1
    assert main([str(page)]) == 0
    assert main(["--check", str(page)]) == 0


def test_the_example_of_the_page_loads(tmp_path: Path) -> None:
    example = document().split("```toml\n")[1].split("```")[0]
    config = load_config(write(tmp_path, example), {})
    assert config.users["shop"].permissions["orders"].write == r"^(shop-|amq\.topic$)"


# Tables of a program


def test_the_later_layer_wins_key_by_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVERET_SERVER__PORT", "9")
    file = write(tmp_path, "[server]\nport = 2\nhost = 'file'\n[vhosts.a]\nlimits.max_queues = 1\n")
    config = combine_config(
        ("default", {"server": {"port": 1, "log_level": "error"}}), ("file", file),
        ("argument", {"server": {"host": "argument", "data_dir": tmp_path}, "auth": {"mechanisms": ("PLAIN",)}}))
    assert (config.server.port, config.server.host, config.server.log_level) == (2, "argument", "error")
    assert config.server.data_dir == str(tmp_path)
    assert config.auth.mechanisms == ["PLAIN"]
    assert config.vhosts["a"].limits.max_queues == 1


@pytest.mark.parametrize(("table", "expected"), [
    ({"sever": {}}, "broker's table: unknown key sever; did you mean server?"),
    ({"server": {"prt": 1}}, "unknown key server.prt; did you mean server.port?"),
    ({"server": {"port": "x"}}, "server.port: got 'x', expected a whole number, 0 to 65535"),
    ({"server": 5}, "server: got 5, expected a table"),
    ({"server": {5: 5}}, "server has the key 5, expected a text"),
    ({5: {}}, "the configuration has the key 5, expected a text"),
    ({"auth": {"mechanisms": []}}, "broker's table: auth.mechanisms is empty"),
])
def test_mistakes_in_a_table_are_refused_by_name(table: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        combine_config(("broker's table", table))
    assert expected in str(caught.value)

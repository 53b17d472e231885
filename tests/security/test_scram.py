"""SCRAM (RFC 5802, RFC 7677): the exchange, and the stored keys of passwords."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.broker.errors import StorageFailed
from leveret.security.mechanisms import Blocking, Challenge, Context, Failure, Success, create, offered
from leveret.security.passwords import Hasher
from leveret.security.scram import ITERATIONS, KEY_BYTES, Keyring, Keys
from leveret.security.users import FORMAT, DeclaredUser, User, UserStore
from tests.security.metadata import Metadata
from tests.support.scram import ScramClient

BOTH = ["SCRAM-SHA-512", "SCRAM-SHA-256"]
# The minimum of the library, for fast tests.
FEW = 4096


class QuickHasher(Hasher):
    def hash(self, password: bytes, salt: bytes | None = None) -> str:
        return "hash:" + password.decode("latin-1")[::-1]

    def verify(self, hash: str, password: bytes) -> bool:
        return hash == self.hash(password)


@pytest.fixture
def metadata() -> Metadata:
    return Metadata()


@pytest.fixture
def store(metadata: Metadata) -> UserStore:
    return open_store(metadata)


def open_store(metadata: Metadata, mechanisms: list[str] = BOTH) -> UserStore:
    store = UserStore(metadata.put, hasher=QuickHasher(), keyring=Keyring(mechanisms, FEW))
    store.load(metadata)
    return store


def add(store: UserStore, name: str, password: bytes = b"secret") -> None:
    secret = store.secret(name, password)
    store.add(User(name=name, password_hash=secret.password_hash, scram=secret.scram))


def begin(store: UserStore, mechanism: str) -> Any:
    found = create(mechanism, BOTH, Context(scram_keys=store.scram_keys))
    assert found is not None
    return found


def first(mechanism: Any, message: bytes) -> Any:
    outcome = mechanism.step(message)
    assert isinstance(outcome, Blocking)
    return outcome.call()


def log_in(store: UserStore, name: str, password: str, mechanism: str = "SCRAM-SHA-256", **options: str) -> Any:
    """Return the outcome of a complete exchange. On success, the server's signature is verified."""
    client = ScramClient(mechanism, name, password, **options)
    server = begin(store, mechanism)
    challenge = first(server, client.first())
    if not isinstance(challenge, Challenge):
        return challenge
    outcome = server.step(client.final(challenge.data))
    if isinstance(outcome, Success):
        client.check(outcome.data)
    return outcome


def is_in(store: UserStore, name: str, password: str, mechanism: str = "SCRAM-SHA-256") -> bool:
    outcome = log_in(store, name, password, mechanism)
    assert isinstance(outcome, (Success, Failure))
    return isinstance(outcome, Success)


# The exchange


def test_the_example_of_rfc_7677(monkeypatch: pytest.MonkeyPatch) -> None:
    import scramp.core

    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    server_nonce = scramp.core.Nonce("%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    monkeypatch.setattr(scramp.core.Nonce, "create", classmethod(lambda cls: server_nonce))
    keyring = Keyring(["SCRAM-SHA-256"], 4096)
    monkeypatch.setattr(keyring, "salt", lambda mechanism, name: salt)
    keys = keyring.make("user", b"pencil")["SCRAM-SHA-256"]
    server = create("SCRAM-SHA-256", BOTH, Context(scram_keys=lambda name, mechanism: keys))
    challenge = first(server, b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert challenge.data == (b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    assert server is not None
    outcome = server.step(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert outcome == Success("user", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("mechanism", BOTH)
def test_right_and_wrong_passwords(store: UserStore, mechanism: str) -> None:
    add(store, "alice")
    outcome = log_in(store, "alice", "secret", mechanism)
    assert isinstance(outcome, Success) and outcome.username == "alice"
    assert not is_in(store, "alice", "Secret", mechanism)
    assert not is_in(store, "bob", "secret", mechanism)


def test_names_with_commas_and_equals_signs(store: UserStore) -> None:
    add(store, "a=b,c")
    assert is_in(store, "a=b,c", "secret")


def test_passwords_are_prepared(store: UserStore) -> None:
    """RFC 4013: a non-breaking space becomes a space, a soft hyphen is removed."""
    add(store, "alice", "pass\u00adword\u00a0one".encode())
    assert is_in(store, "alice", "password one")


@pytest.mark.parametrize("flag", ["n,,", "y,,"])
def test_clients_without_channel_binding(store: UserStore, flag: str) -> None:
    add(store, "alice")
    assert isinstance(log_in(store, "alice", "secret", flag=flag), Success)


@pytest.mark.parametrize("name", ["alice", "a=b,c"])
@pytest.mark.parametrize("flag", ["n", "y"])
def test_a_client_that_acts_as_itself(store: UserStore, flag: str, name: str) -> None:
    """Cyrus SASL sends both names. They are part of the proof."""
    add(store, name)
    escaped = name.replace("=", "=3D").replace(",", "=2C")
    assert isinstance(log_in(store, name, "secret", flag=f"{flag},a={escaped},"), Success)
    assert isinstance(log_in(store, name, "wrong", flag=f"{flag},a={escaped},"), Failure)
    client = ScramClient("SCRAM-SHA-256", name, "secret")
    server = begin(store, "SCRAM-SHA-256")
    challenge = first(server, f"{flag},a={escaped},{client.bare}".encode())
    assert isinstance(server.step(client.final(challenge.data)), Failure)


@pytest.mark.parametrize(
    "flag",
    [
        "p=tls-unique,,",
        "p=tls-server-end-point,,",
        "p=tls-exporter,,",
        "p=tls-unique,a=alice,",
        "n,a=bob,",
        "n,a=,",
        "n,a=alic,",
        "n,b=alice,",
        "x,a=alice,",
        "x,,",
        ",,",
        "n,",
        "",
    ],
)
def test_unsupported_features_are_refused(store: UserStore, flag: str) -> None:
    add(store, "alice")
    assert isinstance(log_in(store, "alice", "secret", flag=flag), Failure)


def test_a_changed_channel_binding_flag_is_detected(store: UserStore) -> None:
    """An attacker who removes -PLUS from the offer turns y into n, which the proof covers."""
    add(store, "alice")
    client = ScramClient("SCRAM-SHA-256", "alice", "secret", flag="y,,")
    server = begin(store, "SCRAM-SHA-256")
    challenge = first(server, b"n,," + client.bare.encode())
    assert isinstance(server.step(client.final(challenge.data)), Failure)


def test_a_nonce_that_exceeds_a_frame_is_refused(store: UserStore) -> None:
    add(store, "alice")
    client = ScramClient("SCRAM-SHA-256", "alice", "secret", nonce="n" * 256)
    challenge = first(begin(store, "SCRAM-SHA-256"), client.first())
    assert len(challenge.data) < 512 - 32
    assert isinstance(first(begin(store, "SCRAM-SHA-256"), b"n,,n=alice,r=" + b"n" * 257), Failure)


def test_an_oversized_message_is_refused() -> None:
    """The server does not prepare, look up or store any part of it."""
    server = create("SCRAM-SHA-256", BOTH, Context(scram_keys=lambda name, mechanism: pytest.fail(name)))
    assert server is not None
    assert isinstance(server.step(b"n,,n=" + b"\xc2\xa0" * 4000 + b",r=nonce"), Failure)


def test_the_final_message_of_another_exchange(store: UserStore) -> None:
    add(store, "alice")
    client = ScramClient("SCRAM-SHA-256", "alice", "secret", nonce="same")
    final = client.final(first(begin(store, "SCRAM-SHA-256"), client.first()).data)
    again = begin(store, "SCRAM-SHA-256")
    first(again, client.first())
    assert isinstance(again.step(final), Failure)


@settings(max_examples=200, deadline=None)
@given(
    message=st.one_of(st.binary(max_size=80), st.text("nyp,=ar\0am1é", max_size=40).map(str.encode)),
    last=st.one_of(st.binary(max_size=80), st.text("crp,=biws1\0é", max_size=40).map(str.encode)),
)
def test_no_message_raises_an_exception(message: bytes, last: bytes) -> None:
    store = open_store(Metadata())
    server = begin(store, "SCRAM-SHA-256")
    assert isinstance(first(server, message), (Challenge, Failure))
    server = begin(store, "SCRAM-SHA-256")
    first(server, b"n,,n=alice,r=nonce")
    assert isinstance(server.step(last), Failure)


def test_scram_is_offered_if_all_users_have_keys() -> None:
    context = Context(scram_keys=open_store(Metadata()).scram_keys)
    assert offered([*BOTH, "PLAIN"], context) == [*BOTH, "PLAIN"]
    assert offered([*BOTH, "PLAIN"], Context()) == ["PLAIN"]
    waiting = Context(scram_keys=context.scram_keys, scram_ready=False)
    assert offered([*BOTH, "PLAIN"], waiting) == ["PLAIN"]
    assert offered([*BOTH, "ANONYMOUS"], waiting) == BOTH
    assert create("SCRAM-SHA-256", ["PLAIN"], context) is None


# Unknown users


@pytest.mark.parametrize("mechanism", BOTH)
def test_an_unknown_name_looks_like_a_user(store: UserStore, metadata: Metadata, mechanism: str) -> None:
    """The salt is always the same: after a restart, and before, while and after the user exists."""

    def challenge(of: UserStore, name: str) -> tuple[bytes, int]:
        client = ScramClient(mechanism, name, "x")
        outcome = first(begin(of, mechanism), client.first())
        client.final(outcome.data)
        return client.salt, client.iterations

    seen = [challenge(store, "alice")]
    seen.append(challenge(open_store(metadata), "alice"))
    add(store, "alice")
    seen.append(challenge(store, "alice"))
    seen.append(challenge(open_store(metadata), "alice"))
    store.delete("alice")
    seen.append(challenge(store, "alice"))
    store.declare({"alice": DeclaredUser(user=User(name="alice"), password=b"clear")})
    seen.append(challenge(store, "alice"))
    store.declare({"alice": DeclaredUser(user=User(name="alice", password_hash="hash:x"))})
    seen.append(challenge(store, "alice"))
    assert set(seen) == {seen[0]}
    assert seen[0][1] == FEW
    assert challenge(store, "bob")[0] != seen[0][0]


def test_the_salts_of_the_mechanisms_and_of_brokers_differ(store: UserStore) -> None:
    keyring = store.keyring
    assert len({keyring.salt(name, "alice") for name in BOTH} | {Keyring().salt(BOTH[0], "alice")}) == 3


def test_fake_keys_never_log_in(store: UserStore) -> None:
    for mechanism, octets in KEY_BYTES.items():
        one, two = store.scram_keys("unknown", mechanism), store.scram_keys("unknown", mechanism)
        assert one.stored_key != two.stored_key
        assert len(one.stored_key) == len(one.server_key) == octets


def test_the_cost_is_the_maximum_of_cyrus_sasl() -> None:
    assert Keyring(BOTH).iterations == ITERATIONS == 0x10000


# Stored keys


def test_keys_are_stored_with_the_user(store: UserStore, metadata: Metadata) -> None:
    add(store, "alice")
    again = open_store(metadata)
    assert again.get("alice") == store.get("alice")
    assert is_in(again, "alice", "secret")
    record = json.loads(metadata["user", "alice"])
    assert record["format"] == FORMAT
    assert set(record["scram"]) == set(BOTH)
    assert b"secret" not in metadata["user", "alice"]


def test_a_new_password_ends_the_old_keys(store: UserStore) -> None:
    add(store, "alice")
    store.change("alice", secret=store.secret("alice", b"new"))
    assert is_in(store, "alice", "new")
    assert not is_in(store, "alice", "secret")
    store.change("alice", tags=["administrator"])
    assert is_in(store, "alice", "new")
    store.delete("alice")
    assert not is_in(store, "alice", "new")


@pytest.fixture
def old(metadata: Metadata) -> UserStore:
    """Return a store with one user in the format without SCRAM."""
    metadata["user", "alice"] = (
        b'{"name":"alice","password_hash":"hash:terces","tags":["administrator"],'
        b'"permissions":{"/":{"configure":".*","write":"a","read":""}},"limits":{"max_connections":3,"max_channels":0}}'
    )
    return open_store(metadata)


def test_an_older_user_gets_keys_at_the_next_password_login(old: UserStore, metadata: Metadata) -> None:
    before = old.get("alice")
    generation = old.generation
    assert not is_in(old, "alice", "secret")
    assert not old.scram_ready()
    assert not old.verify("alice", b"wrong")
    old.keep_keys("alice")
    assert not old.scram_ready()
    assert old.verify("alice", b"secret")
    old.keep_keys("alice")
    assert is_in(old, "alice", "secret")
    assert old.scram_ready()
    # Nothing else has changed, so no cached verdict is invalid.
    assert old.generation == generation
    after = old.get("alice")
    assert before is not None and after is not None
    assert (after.tags, after.permissions, after.limits) == (before.tags, before.permissions, before.limits)
    again = open_store(metadata)
    assert is_in(again, "alice", "secret")
    assert again.verify("alice", b"secret")


def test_keys_of_a_replaced_password_are_discarded(old: UserStore) -> None:
    assert old.verify("alice", b"secret")
    old.change("alice", secret=old.secret("alice", b"new"))
    old.keep_keys("alice")
    assert is_in(old, "alice", "new")
    assert not is_in(old, "alice", "secret")


def test_a_password_that_scram_does_not_support(store: UserStore) -> None:
    for number, password in enumerate((b"\xff\xfe", "bell\u0007".encode())):
        add(store, f"u{number}", password)
        assert store.verify(f"u{number}", password)
        user = store.get(f"u{number}")
        assert user is not None and user.scram == {}
    # There will never be keys, so logins do not wait for them.
    assert store.scram_ready()


def test_a_mechanism_that_is_turned_on_later(metadata: Metadata) -> None:
    one = open_store(metadata, ["SCRAM-SHA-256"])
    add(one, "alice")
    assert one.scram_ready()
    both = open_store(metadata)
    assert not both.scram_ready()
    assert both.verify("alice", b"secret")
    both.keep_keys("alice")
    assert both.scram_ready()
    assert is_in(both, "alice", "secret", "SCRAM-SHA-512")


def test_without_scram_no_keys_are_created(metadata: Metadata) -> None:
    store = open_store(metadata, ["PLAIN"])
    add(store, "alice")
    assert store.verify("alice", b"secret")
    store.keep_keys("alice")
    user = store.get("alice")
    assert user is not None and user.scram is None


def test_a_later_format_is_refused(metadata: Metadata) -> None:
    metadata["user", "alice"] = b'{"format":99,"name":"alice"}'
    with pytest.raises(StorageFailed, match="user 'alice' is stored in format 99, and this version supports up to 3"):
        open_store(metadata)


# The configuration's users


def test_clear_text_passwords(store: UserStore) -> None:
    store.declare({"alice": DeclaredUser(user=User(name="alice"), password=b"one")})
    assert store.scram_ready()
    assert is_in(store, "alice", "one", "SCRAM-SHA-512")
    store.declare({"alice": DeclaredUser(user=User(name="alice"), password=b"two")})
    assert is_in(store, "alice", "two")
    assert not is_in(store, "alice", "one")
    store.declare({})
    assert not is_in(store, "alice", "two")


def test_no_name_costs_more_than_another(store: UserStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first exchange creates the keys of all clear-text passwords, for any user; later ones create none."""
    add(store, "stored")
    store.declare({name: DeclaredUser(user=User(name=name), password=b"x") for name in ("one", "two")})
    made: list[str] = []
    make = store.keyring.make

    def counted(name: str, password: bytes) -> Keys:
        made.append(name)
        return make(name, password)

    monkeypatch.setattr(store.keyring, "make", counted)
    assert not is_in(store, "unknown", "x")
    assert made == ["one", "two"]
    for name in ("one", "two", "stored", "unknown"):
        assert is_in(store, name, "x") is (name in ("one", "two"))
    assert made == ["one", "two"]


def test_hashed_passwords_keep_their_keys_over_a_reload(store: UserStore, metadata: Metadata) -> None:
    declared = {"alice": DeclaredUser(user=User(name="alice", password_hash="hash:terces"))}
    store.declare(declared)
    assert not store.scram_ready()
    assert store.verify("alice", b"secret")
    store.keep_keys("alice")
    assert store.scram_ready()
    store.declare(declared)
    assert store.scram_ready()
    assert is_in(store, "alice", "secret")
    assert ("user", "alice") not in metadata
    store.declare({"alice": DeclaredUser(user=User(name="alice", password_hash="hash:wen"))})
    assert not is_in(store, "alice", "secret")


def test_a_user_of_the_configuration_hides_the_keys_of_the_stored_one(store: UserStore) -> None:
    add(store, "alice", b"stored")
    store.declare({"alice": DeclaredUser(user=User(name="alice"))})
    assert not is_in(store, "alice", "stored")
    assert store.scram_ready()
    store.declare({})
    assert is_in(store, "alice", "stored")


def test_guest(store: UserStore) -> None:
    assert is_in(store, "guest", "guest")
    store.declare({"guest": DeclaredUser(user=User(name="guest"))})
    assert not is_in(store, "guest", "guest")
    store.declare({"other": DeclaredUser(user=User(name="other"))})
    assert not is_in(store, "guest", "guest")


def test_users_without_a_password_do_not_disable_scram(store: UserStore) -> None:
    store.add(User(name="by certificate"))
    assert store.scram_ready()
    assert not is_in(store, "by certificate", "")

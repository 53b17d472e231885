"""Users: passwords, sources, and changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leveret.broker.errors import NotAllowed, NotFound, PreconditionFailed
from leveret.security.passwords import DUMMY_HASH, VERDICT_SECONDS, Hasher, Verdicts
from leveret.security.permissions import Permission
from leveret.security.users import DeclaredUser, User, UserLimits, UserStore
from tests.security.metadata import Metadata


class CountingHasher(Hasher):
    """Hashes by reversing, and counts hashes."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def hash(self, password: bytes, salt: bytes | None = None) -> str:
        return "hash:" + password.decode()[::-1]

    def verify(self, hash: str, password: bytes) -> bool:
        self.calls.append(hash)
        return hash == self.hash(password)


@pytest.fixture
def hasher() -> CountingHasher:
    return CountingHasher()


@pytest.fixture
def metadata() -> Metadata:
    return Metadata()


@pytest.fixture
def store(hasher: CountingHasher, metadata: Metadata) -> UserStore:
    return UserStore(metadata.put, hasher=hasher, declared_in="/etc/leveret.toml")


def declared(name: str, password: bytes | None = None) -> DeclaredUser:
    return DeclaredUser(user=User(name=name), password=password)


def add(store: UserStore, name: str, password: bytes = b"secret") -> None:
    secret = store.secret(name, password)
    store.add(User(name=name, password_hash=secret.password_hash, scram=secret.scram))


# Passwords


def test_every_login_computes_one_hash(store: UserStore, hasher: CountingHasher) -> None:
    add(store, "stored")
    store.declare(
        {
            "clear": declared("clear", b"secret"),
            "hashed": DeclaredUser(user=User(name="hashed", password_hash="hash:terces")),
            "none": declared("none"),
        }
    )
    expected = {
        ("stored", b"secret"): True,
        ("stored", b"wrong"): False,
        ("clear", b"secret"): True,
        ("clear", b"wrong"): False,
        ("hashed", b"secret"): True,
        ("hashed", b"wrong"): False,
        ("none", b""): False,
        ("none", b"secret"): False,
        ("unknown", b"secret"): False,
        ("guest", b"guest"): False,
    }
    for (name, password), right in expected.items():
        hasher.calls.clear()
        assert store.verify(name, password) is right, name
        assert len(hasher.calls) == 1, name


def test_a_second_login_costs_no_hash_right_or_wrong(store: UserStore, hasher: CountingHasher) -> None:
    add(store, "alice")
    for name, password, right in (("alice", b"secret", True), ("alice", b"wrong", False), ("unknown", b"x", False)):
        assert store.cached_verdict(name, password) is None
        assert store.verify(name, password) is right
        hasher.calls.clear()
        assert store.verify(name, password) is right
        assert store.cached_verdict(name, password) is right
        assert hasher.calls == []


def test_changing_a_user_invalidates_its_verdicts(store: UserStore) -> None:
    add(store, "alice")
    assert store.verify("alice", b"secret")
    store.change("alice", secret=store.secret("alice", b"new"))
    assert store.cached_verdict("alice", b"secret") is None
    assert not store.verify("alice", b"secret")
    assert store.verify("alice", b"new")
    store.delete("alice")
    assert not store.verify("alice", b"new")
    add(store, "alice", b"third")
    assert not store.verify("alice", b"new")
    assert store.verify("alice", b"third")


def test_adding_a_user_invalidates_verdicts_for_its_name(store: UserStore) -> None:
    assert not store.verify("alice", b"secret")
    add(store, "alice")
    assert store.verify("alice", b"secret")


def test_digests_separate_names_and_passwords(store: UserStore) -> None:
    add(store, "a", b"bc")
    assert store.verify("a", b"bc")
    assert not store.verify("ab", b"c")


def test_verdicts_are_bounded_and_wrong_ones_do_not_evict_right_ones() -> None:
    verdicts = Verdicts(2)
    verdicts.put(b"right", True)
    for wrong in (b"1", b"2", b"3"):
        verdicts.put(wrong, False)
    assert (verdicts.get(b"1"), verdicts.get(b"3"), verdicts.get(b"right")) == (None, False, True)


def test_a_verdict_holds_for_a_minute() -> None:
    now = 1000.0
    verdicts = Verdicts(clock=lambda: now)
    verdicts.put(b"right", True)
    verdicts.put(b"wrong", False)
    now += VERDICT_SECONDS - 1
    assert (verdicts.get(b"right"), verdicts.get(b"wrong")) == (True, False)
    now += 2
    assert (verdicts.get(b"right"), verdicts.get(b"wrong")) == (None, None)
    assert (verdicts.was_correct(b"right"), verdicts.was_correct(b"wrong")) == (True, False)
    verdicts.put(b"right", False)
    assert verdicts.get(b"right") is False and not verdicts.was_correct(b"right")


def test_a_right_clear_text_password_needs_no_hash(store: UserStore, hasher: CountingHasher) -> None:
    assert store.cached_verdict("guest", b"guest") is True
    store.declare(
        {
            "clear": declared("clear", b"secret"),
            "hashed": DeclaredUser(user=User(name="hashed", password_hash="hash:terces")),
        }
    )
    assert store.cached_verdict("clear", b"secret") is True
    for name, password in (("clear", b"wrong"), ("hashed", b"secret"), ("guest", b"guest"), ("unknown", b"secret")):
        assert store.cached_verdict(name, password) is None
    assert hasher.calls == []
    store.declare({"clear": declared("clear", b"new")})
    assert store.cached_verdict("clear", b"secret") is None


def test_right_passwords_are_remembered_until_the_user_changes(store: UserStore) -> None:
    add(store, "alice")
    assert not store.was_correct(store.digest("alice", b"secret"))
    store.verify("alice", b"secret")
    store.verify("alice", b"wrong")
    assert store.was_correct(store.digest("alice", b"secret"))
    assert not store.was_correct(store.digest("alice", b"wrong"))
    store.change("alice", tags=["administrator"])
    assert not store.was_correct(store.digest("alice", b"secret"))
    assert store.cached_verdict("alice", b"secret") is None


def test_hashes_are_salted_argon2id_of_the_same_cost_as_the_dummy_hash() -> None:
    hasher = Hasher()
    first, second = hasher.hash(b"secret"), hasher.hash(b"secret")
    assert first != second
    assert first.split("$")[1:4] == DUMMY_HASH.split("$")[1:4] == ["argon2id", "v=19", "m=7168,t=5,p=1"]
    assert [len(part) for part in first.split("$")] == [len(part) for part in DUMMY_HASH.split("$")]
    assert hasher.verify(first, b"secret")
    assert not hasher.verify(first, b"Secret")
    assert not hasher.verify(DUMMY_HASH, b"")
    assert not hasher.verify("no hash", b"secret")
    assert not hasher.verify("$argon2id$v=19$m=8,t=1,p=1$\u20ac$x", b"secret")


def test_an_empty_password_is_no_password(store: UserStore) -> None:
    with pytest.raises(PreconditionFailed, match="empty"):
        store.secret("alice", b"")


def test_names_may_have_any_bytes(store: UserStore) -> None:
    assert not store.verify("\udcff", b"x")


# The default user


def test_guest_exists_until_there_is_a_user(store: UserStore) -> None:
    assert store.verify("guest", b"guest")
    assert store.source("guest") == "default"
    assert [user.name for user in store.users()] == ["guest"]
    assert store.may("guest", "/", "configure", "anything")
    assert not store.may_open("guest", "other")
    with pytest.raises(NotAllowed):
        store.delete("guest")
    add(store, "alice")
    assert not store.verify("guest", b"guest")
    assert store.get("guest") is None
    store.delete("alice")
    assert store.verify("guest", b"guest")


def test_a_declared_user_ends_guest_and_guest_may_be_declared(store: UserStore) -> None:
    store.declare({"alice": declared("alice", b"a")})
    assert not store.verify("guest", b"guest")
    store.declare({"guest": declared("guest", b"other")})
    assert not store.verify("guest", b"guest")
    assert store.verify("guest", b"other")
    assert not store.may_open("guest", "/")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("", True),
        ("192.0.2.1", False),
        ("::ffff:192.0.2.1", False),
        ("fe80::1%eth0", False),
        ("example", False),
        ("0.0.0.0", False),
    ],
)
def test_guest_comes_from_the_same_machine_only(store: UserStore, host: str, loopback: bool) -> None:
    assert store.may_connect_from("guest", host) is loopback
    assert store.may_connect_from("alice", host)


def test_other_users_may_be_bound_to_loopback() -> None:
    store = UserStore(loopback_users=["alice"])
    assert not store.may_connect_from("alice", "192.0.2.1")
    assert store.may_connect_from("guest", "192.0.2.1")


# Sources of users


@pytest.mark.parametrize("dropped", [("usez", "alice"), ("user", "al\udcffce"), ("user", ""), ("", "")])
def test_the_default_user_stays_off_after_the_loss_of_a_definition(
    metadata: Metadata, hasher: CountingHasher, dropped: tuple[str, str]
) -> None:
    """The lost definition may be that of the only user, whatever remains of its kind and name."""
    store = UserStore(metadata.put, hasher=hasher)
    store.load(metadata, [dropped])
    assert not store.verify("guest", b"guest")
    assert all(not user.tags and not user.permissions for user in store.users())
    again = UserStore(metadata.put, hasher=hasher)
    again.load(metadata)
    assert again.users() == store.users() and not again.verify("guest", b"guest")


def test_users_that_are_left_are_not_touched_by_the_loss_of_others(
    store: UserStore, metadata: Metadata, hasher: CountingHasher
) -> None:
    add(store, "alice")
    again = UserStore(metadata.put, hasher=hasher)
    again.load(metadata, [("user", "alice"), ("binding", "b")])
    assert again.verify("alice", b"secret")
    assert [user.name for user in again.users()] == ["alice"]


def test_stored_users_are_restored(store: UserStore, metadata: Metadata, hasher: CountingHasher) -> None:
    add(store, "älice")
    store.change("älice", tags=["administrator"], limits=UserLimits(3, 4))
    store.set_permission("älice", "/", Permission("a", "b", "c"))
    again = UserStore(hasher=hasher)
    again.load({**metadata, ("vhost", "x"): b""})
    assert again.users() == store.users()
    assert again.verify("älice", b"secret")
    assert again.get("älice") == User(
        name="älice",
        password_hash="hash:terces",
        tags=("administrator",),
        permissions={"/": Permission("a", "b", "c")},
        limits=UserLimits(3, 4),
    )


def test_the_configuration_wins_over_the_metadata(store: UserStore, metadata: Metadata) -> None:
    add(store, "alice", b"old")
    store.declare({"alice": DeclaredUser(user=User(name="alice", tags=("one",)), password=b"new")})
    assert store.verify("alice", b"new")
    assert not store.verify("alice", b"old")
    changes: tuple[Callable[[], object], ...] = (
        lambda: store.delete("alice"),
        lambda: store.change("alice", tags=[]),
        lambda: store.set_permission("alice", "/", None),
        lambda: add(store, "alice"),
    )
    for change in changes:
        with pytest.raises(NotAllowed, match=r"user 'alice' is declared in /etc/leveret\.toml; change it there"):
            change()
    store.declare({})
    assert store.verify("alice", b"old")


def test_declared_users_are_not_stored(store: UserStore, metadata: Metadata) -> None:
    store.declare({"alice": declared("alice", b"new")})
    assert metadata == {}


def test_missing_and_existing_users_are_refused(store: UserStore) -> None:
    add(store, "alice")
    for change in (
        lambda: store.delete("bob"),
        lambda: store.change("bob", tags=[]),
        lambda: store.source("bob"),
        lambda: store.set_permission("bob", "/", Permission()),
        lambda: store.set_permission("alice", "/", None),
    ):
        with pytest.raises(NotFound):
            change()
    with pytest.raises(PreconditionFailed, match="already exists"):
        add(store, "alice")
    with pytest.raises(PreconditionFailed, match="1 to 255 bytes"):
        add(store, "ä" * 128)


def test_every_change_is_a_new_generation(store: UserStore) -> None:
    seen = [store.generation]
    add(store, "alice")
    seen.append(store.generation)
    store.set_permission("alice", "/", Permission())
    seen.append(store.generation)
    store.declare({})
    seen.append(store.generation)
    store.delete("alice")
    seen.append(store.generation)
    assert seen == sorted(set(seen))


def test_deleting_a_vhost_deletes_its_permissions(store: UserStore, metadata: Metadata) -> None:
    add(store, "alice")
    store.set_permission("alice", "a", Permission(".*"))
    store.set_permission("alice", "b", Permission(".*"))
    store.forget_vhost("a")
    assert not store.may_open("alice", "a")
    assert store.may_open("alice", "b")
    assert b'"a"' not in metadata["user", "alice"]


# Permissions


def test_permissions_hold_for_one_vhost_and_one_operation(store: UserStore) -> None:
    add(store, "alice")
    store.set_permission("alice", "/", Permission("^a", "b$", ""))
    assert store.may("alice", "/", "configure", "apple")
    assert not store.may("alice", "/", "configure", "banana")
    assert store.may("alice", "/", "write", "bob")
    assert not store.may("alice", "/", "read", "apple")
    assert not store.may("alice", "other", "configure", "apple")
    assert not store.may("unknown", "/", "configure", "apple")


def test_invalid_expressions_change_nothing(store: UserStore) -> None:
    add(store, "alice")
    with pytest.raises(PreconditionFailed, match=r"user 'alice', vhost '/': write permission '\(' is not a valid RE2"):
        store.set_permission("alice", "/", Permission(".*", "(", ".*"))
    assert not store.may_open("alice", "/")
    with pytest.raises(PreconditionFailed, match="user 'bob'"):
        store.declare({"bob": DeclaredUser(user=User(name="bob", permissions={"/": Permission("(?>a)")}))})
    assert store.get("bob") is None


def test_the_owner_may_do_everything_everywhere(hasher: CountingHasher) -> None:
    store = UserStore(owner="boss", hasher=hasher)
    assert not store.may_open("boss", "v")
    store.declare({"boss": declared("boss", b"secret"), "other": declared("other", b"secret")})
    assert (store.may_open("boss", "v"), store.may_open("other", "v")) == (True, False)
    for operation in ("configure", "write", "read"):
        assert (store.may("boss", "v", operation, "q"), store.may("other", "v", operation, "q")) == (True, False)
    store.declare({})
    assert not store.may("boss", "v", "read", "q")


def test_unsupported_stored_expressions_allow_nothing(
    store: UserStore, metadata: Metadata, hasher: CountingHasher, caplog: pytest.LogCaptureFixture
) -> None:
    """They allow nothing, and a warning is logged; everything else about the user works."""
    add(store, "alice")
    store.set_permission("alice", "/", Permission("kept", "kept", "^shop"))
    store.set_permission("alice", "b", Permission(".*", ".*", ".*"))
    metadata["user", "alice"] = metadata["user", "alice"].replace(b'"kept"', b'"[a-z]*+"')
    again = UserStore(metadata.put, hasher=hasher)
    again.load(metadata)
    (record,) = caplog.records
    assert "user 'alice', vhost '/'" in record.getMessage() and "a possessive quantifier" in record.getMessage()
    assert not again.may("alice", "/", "configure", "shop")
    assert again.may("alice", "/", "read", "shop")
    again.change("alice", tags=["administrator"])
    again.forget_vhost("b")
    again.set_permission("alice", "/", Permission("[a-z]*"))
    assert again.may("alice", "/", "configure", "shop")


def test_users_of_tokens_do_not_count_as_removed() -> None:
    """They are not stored, so that every change of users would otherwise end what belongs to them."""
    for has_tokens in (False, True):
        store = UserStore(has_tokens=has_tokens)
        store.add(User(name="alice"))
        store.add(User(name="bob"))
        assert store.was_removed("token-user") is not has_tokens
        assert not store.was_removed("alice")
        store.delete("alice")
        assert store.was_removed("alice")

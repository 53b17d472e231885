"""Password hashes in RabbitMQ's format: verification, and replacement at a login."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pika.exceptions
import pytest

from leveret.broker.errors import PreconditionFailed
from leveret.management.control_client import CallFailed, call
from leveret.security.passwords import (
    ARGON2ID,
    DUMMY_HASH,
    RABBITMQ_ALGORITHMS,
    RABBITMQ_SHA256,
    Hasher,
    check_hash,
    rabbitmq_hash,
    verify_rabbitmq_hash,
)
from leveret.security.scram import Keyring
from leveret.security.users import User, UserStore, imported_secret
from tests.cli.runner import Commands
from tests.security.metadata import Metadata
from tests.support.broker import LeveretProcess, leveret_only

# From RabbitMQ's documentation of credentials: the password "test12" with the salt 908D C60A.
DOCUMENTED = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"


def test_the_example_of_rabbitmq() -> None:
    check_hash(DOCUMENTED, RABBITMQ_SHA256)
    assert verify_rabbitmq_hash(DOCUMENTED, RABBITMQ_SHA256, b"test12")
    assert not verify_rabbitmq_hash(DOCUMENTED, RABBITMQ_SHA256, b"test13")


@pytest.mark.parametrize("algorithm", RABBITMQ_ALGORITHMS)
def test_algorithms(algorithm: str) -> None:
    hash = rabbitmq_hash("pässword".encode(), algorithm)
    check_hash(hash, algorithm)
    assert verify_rabbitmq_hash(hash, algorithm, "pässword".encode())
    assert not verify_rabbitmq_hash(hash, algorithm, b"password")
    assert hash != rabbitmq_hash("pässword".encode(), algorithm)


def test_an_empty_password_matches_no_hash() -> None:
    assert not verify_rabbitmq_hash(rabbitmq_hash(b""), RABBITMQ_SHA256, b"")


@pytest.mark.parametrize(
    ("hash", "algorithm", "text"),
    [
        ("not base64!", None, "invalid password hash: expected 36 bytes in base64 for 'rabbit_password_hashing_sha256'"),
        ("AAAA", None, "invalid password hash"),
        (DOCUMENTED, "rabbit_password_hashing_sha512", "invalid password hash: expected 68 bytes"),
        (
            DOCUMENTED,
            "scrypt",
            f"unknown hashing algorithm 'scrypt'; expected one of {ARGON2ID}, rabbit_",
        ),
    ],
)
def test_invalid_hashes_are_refused(hash: str, algorithm: str | None, text: str) -> None:
    with pytest.raises(PreconditionFailed, match=text):
        imported_secret(hash, algorithm)


class RecordingHasher(Hasher):
    """Records the hashes that passwords are verified against."""

    def __init__(self) -> None:
        self.verified: list[str] = []

    def verify(self, hash: str, password: bytes) -> bool:
        self.verified.append(hash)
        return super().verify(hash, password)


def store_with(metadata: Metadata, *, rehash: bool = True, hasher: Hasher | None = None) -> UserStore:
    keyring = Keyring(["SCRAM-SHA-256"], iterations=4096)
    store = UserStore(metadata.put, keyring=keyring, rehash=rehash, hasher=hasher)
    store.load(metadata)
    return store


def add_documented(store: UserStore) -> None:
    secret = imported_secret(DOCUMENTED)
    store.add(User(name="alice", password_hash=secret.password_hash, hashing_algorithm=secret.hashing_algorithm))


def get(store: UserStore) -> User:
    user = store.get("alice")
    assert user is not None
    return user


def test_a_login_replaces_the_hash() -> None:
    metadata = Metadata()
    store = store_with(metadata)
    add_documented(store)
    assert not store.scram_ready()
    assert not store.verify("alice", b"wrong")
    store.keep_keys("alice")
    assert get(store).password_hash == DOCUMENTED
    assert store.verify("alice", b"test12")
    store.keep_keys("alice")
    user = get(store)
    assert user.password_hash.startswith("$argon2id$")
    assert user.hashing_algorithm == ""
    assert user.scram
    assert store.scram_ready()
    reloaded = store_with(metadata)
    assert get(reloaded) == user
    assert reloaded.verify("alice", b"test12")


def test_without_rehash_the_hash_stays_and_scram_works() -> None:
    store = store_with(Metadata(), rehash=False)
    add_documented(store)
    assert store.verify("alice", b"test12")
    store.keep_keys("alice")
    user = get(store)
    assert (user.password_hash, user.hashing_algorithm) == (DOCUMENTED, RABBITMQ_SHA256)
    assert user.scram


def test_a_password_set_during_the_login_wins() -> None:
    store = store_with(Metadata())
    add_documented(store)
    assert store.verify("alice", b"test12")
    store.change("alice", secret=store.secret("alice", b"new"))
    store.keep_keys("alice")
    assert store.verify("alice", b"new")
    assert not store.verify("alice", b"test12")


def test_a_check_takes_the_time_of_an_argon2id_hash() -> None:
    hasher = RecordingHasher()
    store = store_with(Metadata(), hasher=hasher)
    add_documented(store)
    assert not store.verify("alice", b"wrong")
    assert hasher.verified == [DUMMY_HASH]


# Against a broker


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    leveret_only("it has its own users")
    process = LeveretProcess(tmp_path_factory.mktemp("hashes"))
    process.start()
    yield process
    process.stop()
    process.check_log()


@pytest.fixture(scope="module")
def commands(process: LeveretProcess) -> Commands:
    return Commands(process.data_dir)


def login(process: LeveretProcess, user: str, password: str) -> None:
    pika.BlockingConnection(pika.URLParameters(process.url(user=user, password=password))).close()


def hash_of(process: LeveretProcess, user: str) -> tuple[str, str]:
    listed = call(process.data_dir, "users.list", {"hashes": True})
    [found] = [item for item in listed if item["name"] == user]
    return found["password_hash"], found["hashing_algorithm"]


def test_a_user_of_rabbitmq_logs_in(process: LeveretProcess, commands: Commands) -> None:
    commands.ok("users", "add", "alice", "--password-hash", DOCUMENTED, "--hashing-algorithm", RABBITMQ_SHA256)
    commands.ok("permissions", "set", "alice", "--configure", "", "--write", "", "--read", "")
    assert hash_of(process, "alice") == (DOCUMENTED, RABBITMQ_SHA256)
    [shown] = [item for item in commands.json("users") if item["name"] == "alice"]
    assert (shown["password_hash"], shown["hashing_algorithm"]) == ("", "")
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        login(process, "alice", "wrong")
    login(process, "alice", "test12")
    hash, algorithm = hash_of(process, "alice")
    assert (hash[:10], algorithm) == ("$argon2id$", ARGON2ID)
    process.kill()
    process.start()
    login(process, "alice", "test12")


def test_changes_of_the_hash(process: LeveretProcess, commands: Commands) -> None:
    made = call(process.data_dir, "users.hash_password", {"password": "x"})
    assert made["hashing_algorithm"] == RABBITMQ_SHA256
    commands.ok("users", "add", "bob", "--no-password")
    commands.ok("permissions", "set", "bob", "--configure", "", "--write", "", "--read", "")
    commands.ok("users", "change", "bob", "--password-hash", made["password_hash"])
    login(process, "bob", "x")
    commands.ok("users", "change", "bob", "--password-hash", "")
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        login(process, "bob", "x")
    assert "only one of" in commands.mistaken("users", "add", "c", "--no-password", "--password-hash", "")


def test_set_adds_or_replaces(process: LeveretProcess) -> None:
    def set_user(**fields: object) -> bool:
        return bool(call(process.data_dir, "users.set", {"name": "carol", **fields})["created"])

    assert set_user(password="first", tags="monitoring, shop")
    call(process.data_dir, "permissions.set", {"user": "carol", "configure": "", "write": "", "read": ""})
    login(process, "carol", "first")
    assert not set_user(password_hash=DOCUMENTED, tags=["management"])
    login(process, "carol", "test12")
    [carol] = [item for item in call(process.data_dir, "users.list") if item["name"] == "carol"]
    assert (carol["tags"], carol["vhosts"]) == (["management"], ["/"])
    assert not set_user(tags=[])
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        login(process, "carol", "test12")
    for fields, text in (
        ({"password": "x", "password_hash": "", "tags": []}, "expected either 'password' or 'password_hash'"),
        ({"hashing_algorithm": RABBITMQ_SHA256, "tags": []}, "without 'password_hash'"),
        ({"password_hash": "AAAA", "tags": []}, "invalid password hash"),
    ):
        with pytest.raises(CallFailed, match=text):
            set_user(**fields)


# Logins of other processes


def test_authenticate(process: LeveretProcess) -> None:
    def authenticate(name: str, password: str, address: str = "192.0.2.1") -> dict[str, Any]:
        found = call(process.data_dir, "users.authenticate", {"name": name, "password": password, "address": address})
        assert isinstance(found, dict)
        return found

    call(process.data_dir, "users.set", {"name": "dave", "password_hash": DOCUMENTED, "tags": "policymaker"})
    answer = authenticate("dave", "test12")
    assert len(answer.pop("credential")) == 64
    assert answer == {
        "name": "dave",
        "tags": ["policymaker"],
        "roles": ["management", "policymaker"],
        "vhosts": [],
        "grants": [],
        "is_token": False,
        "expires_at": 0.0,
    }
    assert hash_of(process, "dave")[1] == ARGON2ID
    call(process.data_dir, "permissions.set", {"user": "dave", "configure": "", "write": "", "read": ""})
    assert authenticate("dave", "test12")["vhosts"] == ["/"]
    for name, password in (("dave", "wrong"), ("dave", "wrong"), ("unknown", "test12"), ("dave", "")):
        with pytest.raises(CallFailed, match=f"login refused for user '{name}'"):
            authenticate(name, password)


def test_authenticate_restricts_loopback_users(process: LeveretProcess) -> None:
    for address in ("", "127.0.0.1", "::1"):
        call(process.data_dir, "users.authenticate", {"name": "guest", "password": "guest", "address": address})
    with pytest.raises(CallFailed, match="login refused for user 'guest'"):
        call(process.data_dir, "users.authenticate", {"name": "guest", "password": "guest", "address": "192.0.2.1"})

"""Scopes in RabbitMQ's syntax."""

from __future__ import annotations

import pytest

from leveret.security.oauth.scopes import Glob, Scopes


def allows(scope: str, vhost: str, name: str, permission: str = "read", **variables: str) -> bool:
    return Scopes([scope], variables).allow(vhost, permission, name)


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("*", "", True),
        ("*", "anything", True),
        ("", "", True),
        ("", "a", False),
        ("q", "q", True),
        ("q", "qq", False),
        ("q*", "q1", True),
        ("*q", "a-q", True),
        ("*q", "q-a", False),
        ("a*c", "abc", True),
        ("a*c", "ac", True),
        ("aa*aa", "aaa", False),
        ("a*b*c", "a-b-b-c", True),
        ("a*b*c", "acb", False),
        ("**", "x", True),
        ("%2F", "/", True),
        ("%2f", "/", True),
        ("a%2Ab", "a*b", True),
        ("a%2Ab", "axb", False),
        (".*", "x", False),
    ],
)
def test_patterns_match_whole_names_and_only_stars_are_wildcards(pattern: str, text: str, matches: bool) -> None:
    assert Glob(pattern, {}).matches(text, "/") is matches


def test_a_pattern_of_many_stars_takes_no_exponential_time() -> None:
    assert not Glob("*a" * 2000 + "b", {}).matches("a" * 4000, "/")


def test_a_scope_covers_its_permission_vhost_and_name() -> None:
    assert allows("read:shop/orders", "shop", "orders")
    assert not allows("read:shop/orders", "shop", "orders", "write")
    assert not allows("read:shop/orders", "shop", "other")
    assert not allows("read:shop/orders", "other", "orders")
    assert allows("configure:*/*", "any", "thing", "configure")


def test_the_default_exchange_is_named_amq_default() -> None:
    assert allows("write:*/amq.default", "/", "", "write")
    assert not allows("write:*/orders", "/", "", "write")


@pytest.mark.parametrize("scope", ["read:shop", "read:", "read", "", ":", "own:*/*", "read:a/b/c/d", "openid", "READ:*/*"])
def test_a_scope_in_another_syntax_grants_nothing(scope: str) -> None:
    found = Scopes([scope], {})
    assert not found.open("shop") and not found.allow("shop", "read", "orders") and found.tags == ()


def test_any_scope_of_a_vhost_opens_it() -> None:
    found = Scopes(["write:shop-*/none"], {})
    assert found.open("shop-1") and not found.open("other")


def test_a_routing_key_is_checked_with_its_exchange() -> None:
    found = Scopes(["write:*/events/orders.*", "write:*/logs"], {})
    assert found.allow_topic("/", "write", "events", "orders.new")
    assert not found.allow_topic("/", "write", "events", "users.new")
    assert not found.allow_topic("/", "read", "events", "orders.new")
    assert found.allow_topic("/", "write", "logs", "any.key")


def test_tags_are_listed_once_in_order() -> None:
    assert Scopes(["tag:monitoring", "tag:management", "tag:monitoring", "tag:"], {}).tags == ("monitoring", "management")


def test_variables_stand_for_claims_and_the_vhost() -> None:
    assert allows("read:*/{sub}-*", "/", "alice-1", sub="alice")
    assert not allows("read:*/{sub}-*", "/", "bob-1", sub="alice")
    assert allows("read:*/{vhost}.q", "shop", "shop.q")
    assert not allows("read:*/{vhost}.q", "shop", "{vhost}.q")
    # A variable without a value stays as it is.
    assert allows("read:*/{team}", "/", "{team}")


def test_the_value_of_a_claim_is_no_pattern() -> None:
    assert not allows("read:*/{sub}", "/", "anything", sub="*")
    assert allows("read:*/{sub}", "/", "*", sub="*")


def test_a_claim_does_not_replace_the_vhost() -> None:
    found = Scopes(["read:*/{vhost}"], {"vhost": "secret"})
    assert found.allow("shop", "read", "shop") and not found.allow("shop", "read", "secret")

"""Tags of users, and the roles that they grant."""

from __future__ import annotations

import pytest

from leveret.security.tags import parse_tags, roles_of


@pytest.mark.parametrize(
    ("tags", "roles"),
    [
        ([], set()),
        (["management"], {"management"}),
        (["policymaker"], {"policymaker", "management"}),
        (["monitoring"], {"monitoring", "management"}),
        (["policymaker", "monitoring"], {"policymaker", "monitoring", "management"}),
        (["administrator"], {"administrator", "policymaker", "monitoring", "management"}),
        (["impersonator", "other"], set()),
    ],
)
def test_roles(tags: list[str], roles: set[str]) -> None:
    assert roles_of(tags) == roles


@pytest.mark.parametrize(
    ("given", "tags"),
    [
        ("", ()),
        ("a", ("a",)),
        ("a,b", ("a", "b")),
        (" a , b,,a ", ("a", "b")),
        (["a", " b", ""], ("a", "b")),
    ],
)
def test_tags_are_a_list_or_a_text(given: str | list[str], tags: tuple[str, ...]) -> None:
    assert parse_tags(given) == tags

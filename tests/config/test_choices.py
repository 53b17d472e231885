"""Choices of settings and commands are the names in the registries."""

from __future__ import annotations

import re
from collections.abc import Iterable

import click
import pytest

from leveret.broker.exchanges.registry import TYPES
from leveret.broker.exchanges.routing_types import ROUTING_TYPES
from leveret.cli.bench import bench
from leveret.cli.exchanges import add
from leveret.config.errors import ConfigError
from leveret.config.load import combine_config
from leveret.config.values import Setting
from leveret.node.choices import CHOICES
from leveret.security.mechanisms.registry import MECHANISMS
from leveret.storage.registry import ENGINES, POSTGRESQL


def option(command: click.Command, name: str) -> click.Option:
    [found] = [one for one in command.params if isinstance(one, click.Option) and one.name == name]
    return found


@pytest.mark.parametrize(
    ("section", "key", "value", "names"),
    [("auth", "mechanisms", ["GSSAPI"], MECHANISMS), ("storage", "engine", "files", ENGINES)],
)
def test_an_unknown_name_is_refused_with_those_of_the_registry(
    section: str, key: str, value: Setting, names: Iterable[str]
) -> None:
    quoted = ", ".join(f'"{name}"' for name in names)
    with pytest.raises(ConfigError, match=f"{section}.{key}.*{re.escape(quoted)}"):
        combine_config(("test", {section: {key: value}}), choices=CHOICES)


def test_every_engine_is_accepted() -> None:
    for engine in ENGINES:
        storage = {"engine": engine} | ({"dsn": "postgresql://"} if engine == POSTGRESQL else {})
        assert combine_config(("test", {"storage": storage}), choices=CHOICES).storage.engine == engine


def test_a_process_that_only_looks_for_the_data_directory_accepts_any_name() -> None:
    assert combine_config(("test", {"storage": {"engine": "files"}})).storage.engine == "files"


def test_an_empty_list_of_mechanisms_is_refused_with_their_names() -> None:
    with pytest.raises(ConfigError, match=f"expected at least one of {', '.join(MECHANISMS)}$"):
        combine_config(("test", {"auth": {"mechanisms": []}}), choices=CHOICES)


def test_the_exchange_types_of_the_command_line() -> None:
    assert option(add, "type_name").help == f"Exchange type: {', '.join(TYPES)}."
    choice = option(bench, "exchange").type
    assert isinstance(choice, click.Choice) and tuple(choice.choices) == ("default", *ROUTING_TYPES)

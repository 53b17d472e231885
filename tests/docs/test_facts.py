"""The settings, arguments and methods on the pages exist in the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from leveret.broker import delay
from leveret.broker.arguments import CACHE_TTL, CONSUMER_ARGUMENTS, EXCHANGE_ARGUMENTS, TEN_YEARS
from leveret.broker.exchanges.registry import TYPES
from leveret.broker.queues.classic.queue import RETRY_COUNT
from leveret.broker.queues.history import NO_STORE
from leveret.broker.queues.registry import QUEUE_ARGUMENTS
from leveret.broker.streams import filters, tracking
from leveret.config import Config
from leveret.management.operations.table import OPERATIONS, VHOST_OPERATIONS
from leveret.protocols.convert import origins, to_amqp10
from leveret.shovel import additions
from leveret.wire.amqp0 import classes
from leveret.wire.amqp0.specs import V0_9, V0_9_1
from tests.conformance.catalogue import rules_of
from tests.docs.pages import DOCS, PAGES, code, page_id, prose, table_rows
from tests.support.broker import ROOT

pages = pytest.mark.parametrize("page", PAGES, ids=page_id)

SECTIONS = {field.name for field in msgspec.structs.fields(Config)}


def known_keys() -> set[str]:
    """All keys, as the generated table of the configuration has them."""
    return {key for row in table_rows(DOCS / "configuration.md") for key in re.findall(r"^`([^`]+)`$", row[0])}


def test_the_table_of_keys_is_found() -> None:
    assert {"server.port", "vhosts.VHOST.compat.strict"} <= known_keys()
    assert {key.split(".")[0] for key in known_keys() if "." in key} == SECTIONS


@pages
def test_settings_exist(page: Path) -> None:
    if page.name == "pipeline-file.md":
        return  # its keys are compared with the structs of a pipeline
    keys = known_keys()
    groups = {key[: at.start()] for key in keys for at in re.finditer(r"\.", key)}
    # Of a class that is called as a section is: methods, rules, and calls.
    others = {*V0_9.by_name, *rules_of("0-9"), *OPERATIONS}
    for text in code(page):
        for name in re.findall(r"^(?:--set )?([a-z]+(?:\.(?:[a-z_]+|NAME|VHOST|REALM))+)(?: *=.*)?$", text):
            section = name.split(".")[0]
            if section in SECTIONS and not re.search(r"\.(py|md|toml|list|sqlite)$", name):
                assert name in keys | groups | others, f"`{text}`: there is no such setting"


@pages
def test_methods_exist(page: Path) -> None:
    if page.name.startswith("conformance") or page.parent.name == "client":
        return  # the first is generated and has rules that look like methods; the second has objects with these names
    known = {*V0_9_1.by_name, *V0_9.by_name, *VHOST_OPERATIONS}
    classes = {name.split(".")[0] for name in V0_9_1.by_name}
    for text in code(page):
        if re.fullmatch(r"[a-z]+\.[a-z-]+", text) and text.split(".")[0] in classes:
            assert text in known, f"`{text}`: there is no such method"


def test_the_tables_of_operations_are_complete() -> None:
    """Each operation of `leveret.control` has its row, with its arguments by their names."""
    pages = ("control-exchange.md", "leases.md", "sink-transactions.md")
    table = [row for page in pages for row in table_rows(DOCS / page)]
    rows = {row[0].strip("`"): row[1] for row in table if row[0].strip("`") in VHOST_OPERATIONS}
    assert rows.keys() == VHOST_OPERATIONS.keys()
    for name, operation in VHOST_OPERATIONS.items():
        arguments = [field.encode_name for field in msgspec.structs.fields(operation.request)]
        assert re.findall(r"`([a-z0-9_]+)`", rows[name]) == arguments, name


@pytest.mark.parametrize(
    ("name", "declared"),
    [("queues.md", QUEUE_ARGUMENTS), ("exchanges.md", EXCHANGE_ARGUMENTS), ("consuming.md", CONSUMER_ARGUMENTS)],
)
def test_every_argument_is_documented(name: str, declared: dict[str, object]) -> None:
    """Each argument of the broker has a row, and each row is about such an argument."""
    documented = {
        argument
        for row in table_rows(DOCS / name)
        if re.fullmatch(r"(?:`[a-z-]+`(?:, )?)+", row[0])
        for argument in re.findall(r"`((?:x-|hash-|alternate-)[a-z-]+)`", row[0])
    }
    assert documented - ({"x-match", *TYPES} - set(declared)) - {"x-overflow"} == set(declared) - {"x-overflow"}
    for argument in QUEUE_ARGUMENTS.values() if name == "queues.md" else ():
        row = next(row for row in table_rows(DOCS / name) if f"`{argument.name}`" in row[0])
        assert all(f"`{choice}`" in row[1] for choice in argument.choices), f"{argument.name}: a value is missing"


@pages
def test_arguments_exist(page: Path) -> None:
    known = {
        *QUEUE_ARGUMENTS,
        *EXCHANGE_ARGUMENTS,
        *CONSUMER_ARGUMENTS,
        *TYPES,
        "x-match",
        "x-death",
        "x-delivery-count",
        "x-first-death-queue",
        "x-first-death-reason",
        "x-first-death-exchange",
        "x-raw-timestamp",
        "x-",
        # Headers of stream messages.
        filters.FILTER_VALUE,
        tracking.PUBLISHER,
        tracking.SEQUENCE,
        # Headers that shovels add.
        additions.FORWARDED,
        additions.TIMESTAMP,
        additions.EXCHANGE,
        additions.ROUTING_KEY,
        # Reasons given by a Spark sink for rows that cannot be published.
        "x-exception-message",
        "x-original-exchange",
        "x-original-routing-key",
        # The delay of a message to a delayed exchange.
        delay.HEADER,
        # Excludes a message from the history of an exchange.
        NO_STORE,
        # The lifetime of the key of a message.
        CACHE_TTL,
        RETRY_COUNT,
        # A part of a content type.
        "x-protobuf",
        # Annotations of AMQP 1.0 for features of 0-9-1.
        origins.EXCHANGE,
        origins.ROUTING_KEY,
        to_amqp10.TYPE,
        # Headers for fields of another content class of 0-9.
        classes.FILENAME,
        classes.TRANSACTION_ID,
        *(header for hidden in classes.HIDDEN.values() for _, header in hidden),
    }
    named = {name for text in code(page) for name in re.findall(r"(?<![\w/-])x-(?!opt-)[a-z-]*", text)}
    assert named <= known


def test_exchange_types_are_documented() -> None:
    rows = {row[0] for row in table_rows(DOCS / "exchanges.md")}
    assert {f"`{name}`" for name in TYPES} <= rows


def test_the_maximum_time() -> None:
    assert f"{TEN_YEARS:,}" in prose(DOCS / "queues.md")


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "index.md", DOCS / "quickstart.md"], ids=page_id)
def test_the_number_of_libraries(page: Path) -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        dependencies = tomllib.load(file)["project"]["dependencies"]
    assert len(dependencies) == 7
    assert "seven small libraries" in " ".join(page.read_text("utf-8").split())


def test_the_supported_versions_of_python_are_declared_and_tested() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    declared = re.findall(r"Programming Language :: Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    documented = [row[0] for row in table_rows(DOCS / "python-versions.md") if re.fullmatch(r"3\.\d+", row[0])]
    workflows = ROOT / ".github" / "workflows"
    tested = re.findall(r'python-version: "(3\.\d+)"', (workflows / "ci.yml").read_text("utf-8"))
    tested += re.findall(r'python: "(3\.\d+)", experimental: false', (workflows / "pythons.yml").read_text("utf-8"))
    assert documented == declared == tested
    assert project["requires-python"] == f">={declared[0]}"

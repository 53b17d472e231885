"""The kinds of flows: a new one is a struct in the registry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from leveret.spark.pipeline import Flow, PipelineError, TableOutput
from leveret.spark.pipeline.checks import Problem
from leveret.spark.pipeline.kinds.registry import DEFAULT_KIND, KINDS
from leveret.spark.pipeline.load import load_pipeline, pipeline_of
from leveret.spark.pipeline.model import FlowSection
from leveret.spark.pipeline.package import package_pipeline
from leveret.spark.pipeline.run import flows_of

TEXT = """
name = "shop"
directory = "/data/state"

[flows.audit]
kind = "audit"
capture = { stream = "orders" }
rules = "rules.txt"
log = "log"
every = 2
targets = [{ path = "table" }]
"""


class AuditFlow(FlowSection, frozen=True, kw_only=True, tag="audit"):
    FILES = ("rules",)
    LOCATIONS = ("log",)

    rules: str
    log: str
    every: int = 1
    targets: list[TableOutput] = []

    def check(self) -> Iterator[Problem]:
        if self.every < 1:
            yield ("every",), f"is {self.every}; expected 1 or more"

    def build(self, name: str) -> Flow:
        return Flow(name, self.capture, tables=self.targets, trigger=self.trigger)

    def requirements(self) -> Iterator[str]:
        yield "auditing>=1"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(KINDS, "audit", AuditFlow)
    (tmp_path / "rules.txt").write_text("all")
    path = tmp_path / "pipeline.toml"
    path.write_text(TEXT)
    return path


def test_the_names_of_the_kinds() -> None:
    assert list(KINDS) == ["flow", "archive", "traffic", "enrich", "scrub"]
    flow = {"capture": {"stream": "orders"}, "tables": [{"path": "table"}]}
    loaded = pipeline_of({"name": "shop", "directory": "state", "flows": {"orders": flow}})
    assert type(loaded.flows["orders"]) is KINDS[DEFAULT_KIND]


def test_a_new_kind_is_loaded_and_built(file: Path) -> None:
    pipeline = load_pipeline(file)
    loaded = pipeline.flows["audit"]
    assert isinstance(loaded, AuditFlow)
    assert (loaded.rules, loaded.log, loaded.every) == (str(file.parent / "rules.txt"), str(file.parent / "log"), 2)
    (flow,) = flows_of(pipeline).values()
    assert (flow.name, flow.trigger) == ("shop.audit", 5.0)
    assert [table.path for table in flow.tables] == [str(file.parent / "table")]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("every = 2", "every = 0", ":10: flows.audit.every is 0; expected 1 or more"),
        ("every = 2", "ever = 2", ":10: flows.audit.ever is unknown; did you mean every?"),
        ('kind = "audit"', 'kind = "adit"', "expected one of flow, archive, traffic, enrich, scrub, audit"),
        ('stream = "orders"', "", ":7: flows.audit.capture has none; expected exactly one of"),
    ],
)
def test_a_flow_of_a_new_kind_is_checked(file: Path, old: str, new: str, expected: str) -> None:
    file.write_text(TEXT.replace(old, new))
    with pytest.raises(PipelineError) as raised:
        load_pipeline(file)
    assert expected in str(raised.value)


def test_a_package_has_the_files_and_requirements_of_a_new_kind(file: Path) -> None:
    target = file.parent / "out"
    with pytest.raises(PipelineError, match="'log' is a relative path"):
        package_pipeline(str(file), str(target))
    assert not target.exists()
    file.write_text(TEXT.replace('"log"', '"/data/log"').replace('"table"', '"/data/table"'))
    package_pipeline(str(file), str(target))
    assert (target / "rules.txt").read_text() == "all"
    assert "auditing>=1" in (target / "requirements.txt").read_text().splitlines()
    with ZipFile(target / "packages.zip") as packed:
        assert "leveret/spark/pipeline/kinds/registry.py" in packed.namelist()


@pytest.mark.parametrize("broker", ['[broker]\npassword_file = "secret"\n', 'broker = { password_file = "secret" }\n'])
def test_a_package_refuses_a_relative_password_file(file: Path, broker: str) -> None:
    target = file.parent / "out"
    absolute = TEXT.replace('"log"', '"/data/log"').replace('"table"', '"/data/table"')
    file.write_text(absolute.replace("[flows.audit]", f"{broker}[flows.audit]", 1))
    with pytest.raises(PipelineError, match="password_file 'secret' is a relative path"):
        package_pipeline(str(file), str(target))
    assert not target.exists()

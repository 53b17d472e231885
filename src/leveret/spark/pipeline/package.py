"""Packages a pipeline for a cluster: a directory with all files of the project that spark-submit needs.

The Python of the workers needs the other packages (pyarrow, and fastavro, protobuf or pyiceberg if the pipeline uses them),
because compiled code cannot be shipped. requirements.txt lists them.
"""

from __future__ import annotations

import shlex
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import leveret
from leveret.segments.typed_json import Document
from leveret.spark.pipeline import model
from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.load import load_pipeline
from leveret.spark.pipeline.run import replacements

ENTRY = '''"""Runs the pipeline beside this file; for spark-submit."""

import sys
from pathlib import Path

from leveret.spark.pipeline.run import run_pipeline

if __name__ == "__main__":
    path = Path(__file__).resolve().parent / "pipeline.toml"
    good = run_pipeline(str(path), once="--once" in sys.argv[1:], submitted=True, echo=lambda line: print(line, flush=True))
    sys.exit(0 if good else 1)
'''

# Spark sends the archive to its workers. Python processes that plan run next to the driver and need it in PYTHONPATH.
SUBMIT = """#!/bin/sh
# Needs the packages of requirements.txt in the Python of the driver and of the workers.
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here/packages.zip${{PYTHONPATH:+:$PYTHONPATH}}"
exec spark-submit {options} --py-files "$here/packages.zip" "$here/main.py" "$@"
"""

# The distribution's dependencies that pipelines use.
REQUIREMENTS = ("msgspec>=0.19", "mypy-extensions>=1.0", "pyarrow>=18", "fsspec>=2024.6", "pyspark>=4.2")


def package_pipeline(path: str, target: str, master: str | None = None) -> str:
    """Write the package, and return the path of the script in it that runs the pipeline.

    Files that the pipeline names by relative paths are copied. Tables and the pipeline's directory must be URLs or absolute
    paths that every machine of the cluster can access.

    Raises:
        PipelineError: The pipeline is invalid, or a file is missing.
    """
    pipeline = load_pipeline(path, replacements(master, None))
    text = Path(path).read_text("utf-8")
    files: dict[str, bytes] = {}
    modules: dict[str, Path] = {}
    for name, flow in pipeline.flows.items():
        text = _collect_files(text, flow, Path(path).absolute().parent, files)
        for transform in flow.sections():
            if isinstance(transform, model.Transform) and transform.function is not None:
                root = transform.function.partition(":")[0].partition(".")[0]
                modules[root] = _find_module(root, transform.path, name)
    _check_locations(path, text, pipeline)
    directory = Path(target)
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    archive = directory / "packages.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as archive_file:
        for source, name in _sources(modules):
            archive_file.write(source, name)
    (directory / "pipeline.toml").write_text(text, "utf-8")
    (directory / "main.py").write_text(ENTRY, "utf-8")
    (directory / "requirements.txt").write_text("".join(f"{line}\n" for line in _requirements(pipeline)), "utf-8")
    submit = directory / "submit.sh"
    submit.write_text(SUBMIT.format(options=shlex.join(_options(pipeline))), "utf-8")
    submit.chmod(0o755)
    return str(submit)


def _check_locations(path: str, text: str, pipeline: model.Pipeline) -> None:
    """Refuse relative paths of locations, which each machine of the cluster would look up in a directory of its own."""
    sections = [pipeline.broker, *(section for flow in pipeline.flows.values() for section in flow.sections())]
    keys = {"directory"}.union(*(section.LOCATIONS for section in sections))
    for key, location in _strings(tomllib.loads(text)):
        if key in keys and "://" not in location and not Path(location).is_absolute():
            raise PipelineError(
                f"{path}: {key} {location!r} is a relative path; a packaged pipeline needs a URL or an absolute path that "
                "every machine can access"
            )


def _strings(table: dict[str, Document]) -> Iterator[tuple[str, str]]:
    """Yield the strings in a table and in those inside it, with their keys."""
    for key, value in table.items():
        for element in value if isinstance(value, list) else [value]:
            if isinstance(element, dict):
                yield from _strings(element)
            elif isinstance(element, str) and element is value:
                yield key, element


def _options(pipeline: model.Pipeline) -> list[str]:
    """Return the options for spark-submit from the pipeline's file."""
    options = ["--master", pipeline.spark.master, "--deploy-mode", "client", "--name", pipeline.name]
    for key, value in pipeline.spark.conf.items():
        options += ["--conf", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
    return options


def _sources(modules: dict[str, Path]) -> Iterator[tuple[Path, str]]:
    """Yield files and their names in the archive: this package, the module for Spark's discovery, and the user's."""
    root = Path(leveret.__file__).parent
    own = {root.name: root, "pyspark_amqp": root.parent / "pyspark_amqp"}
    for name, place in {**own, **modules}.items():
        if place.is_file():
            yield place, f"{name}.py"
            continue
        for file in sorted(place.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts and file.suffix not in (".so", ".pyd"):
                yield file, f"{name}/{file.relative_to(place).as_posix()}"


def _find_module(root: str, paths: list[str], flow: str) -> Path:
    for path in paths:
        for place in (Path(path) / root, Path(path) / f"{root}.py"):
            if place.exists():
                return place
    raise PipelineError(f"flows.{flow}.transform.function: module {root} not found in {', '.join(paths)}")


def _collect_files(text: str, flow: model.FlowSection, base: Path, files: dict[str, bytes]) -> str:
    """Add the files with relative paths to `files`, by name, and return the file's text with their new names."""
    for place in (getattr(section, name) for section in flow.sections() for name in section.FILES):
        if place is None:
            continue
        source = Path(place)
        if not source.exists():
            raise PipelineError(f"{place} cannot be copied: the file does not exist")
        if source.is_relative_to(base):
            files[source.name] = source.read_bytes()
            text = text.replace(f'"{source.relative_to(base).as_posix()}"', f'"{source.name}"')
    return text


def _requirements(pipeline: model.Pipeline) -> list[str]:
    found = list(REQUIREMENTS)
    for flow in pipeline.flows.values():
        for section in flow.sections():
            found += section.requirements()
    return list(dict.fromkeys(found))

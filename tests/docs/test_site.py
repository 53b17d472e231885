"""The published site has a directory for each release, and a selector for them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tools import build_site

pytest.importorskip("material", reason="mkdocs-material is not installed; run make setup")


def commit(repository: Path, text: str, *tags: str) -> None:
    (repository / "docs").mkdir(exist_ok=True)
    (repository / "docs" / "index.md").write_text(text, "utf-8")
    author = ("-c", "user.name=x", "-c", "user.email=x@localhost")
    for command in (("add", "."), (*author, "commit", "-q", "-m", text), *(("tag", tag) for tag in tags)):
        subprocess.run(["git", *command], cwd=repository, check=True)


def test_the_site_has_all_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository, site = tmp_path / "repository", tmp_path / "site"
    subprocess.run(["git", "init", "-q", repository], check=True)
    monkeypatch.setattr(build_site, "ROOT", repository)
    commit(repository, "without a site", "v0.1.0")
    (repository / "mkdocs.yml").write_text("site_name: x\ntheme: material\nplugins: []\n", "utf-8")
    commit(repository, "the first one", "v0.2.0")
    commit(repository, "a fix", "v0.2.1", "v0.10.0rc1")
    commit(repository, "unreleased")
    build_site.build_site(site)
    versions = json.loads((site / "versions.json").read_text("utf-8"))
    assert [(version["version"], version["title"]) for version in versions] == [("0.2", "0.2.1"), ("dev", "dev")]
    assert "a fix" in (site / "0.2" / "index.html").read_text("utf-8")
    assert "unreleased" in (site / "dev" / "index.html").read_text("utf-8")
    # The theme reads versions.json, beside the directory of the version.
    assert '"version": {"provider": "mike"}' in (site / "0.2" / "index.html").read_text("utf-8")
    assert "url=0.2/" in (site / "index.html").read_text("utf-8")


def test_a_broken_link_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", repository], check=True)
    monkeypatch.setattr(build_site, "ROOT", repository)
    (repository / "mkdocs.yml").write_text("site_name: x\ntheme: material\nplugins: []\n", "utf-8")
    commit(repository, "![missing](images/missing.png)")
    with pytest.raises(subprocess.CalledProcessError):
        build_site.build_site(tmp_path / "site")


def test_releases_are_sorted_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_site, "git", lambda *_: b"v0.9.0\nv0.10.0\nv0.10.1\nv0.10.2rc1\nv1.0.0\nother\n")
    assert build_site.releases() == ["1.0.0", "0.10.1", "0.9.0"]

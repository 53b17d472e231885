"""Build the published site, the documentation of this checkout and of each release: `make site`.

Each version has a directory of its own, with a selector in its header that reads `versions.json`. Releases are built from
their tags, with the pinned tools of this checkout; a release without `mkdocs.yml` is left out.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEVELOPMENT = "dev"
# Adds the selector to the theme, also that of releases whose own file has none.
CONFIG = "INHERIT: mkdocs.yml\nextra:\n  version:\n    provider: mike\n"
REDIRECT = '<!doctype html>\n<title>Leveret</title>\n<meta http-equiv="refresh" content="0; url={}/">\n'


def git(*arguments: str) -> bytes:
    """Return the output of git in the checkout."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def releases() -> list[str]:
    """Return the latest release of each minor version, the newest first, such as 0.2.1."""
    tags = git("tag", "--list", "v*").decode().split()
    found = [re.fullmatch(r"v(\d+)\.(\d+)\.(\d+)", tag) for tag in tags]
    numbers = sorted((tuple(map(int, match.groups())) for match in found if match), reverse=True)
    latest = {number[:2]: number for number in reversed(numbers)}
    return [".".join(map(str, latest[minor])) for minor in sorted(latest, reverse=True)]


def build(source: Path, target: Path, *options: str) -> None:
    """Build the site of a checkout. Raises `subprocess.CalledProcessError`, after mkdocs has printed why."""
    with tempfile.NamedTemporaryFile("w", dir=source, prefix=".mkdocs-", suffix=".yml", encoding="utf-8") as config:
        config.write(CONFIG)
        config.flush()
        # Without --quiet, because --strict does not count the warnings that it hides.
        mkdocs = (sys.executable, "-m", "mkdocs", "build", "--config-file", config.name)
        subprocess.run([*mkdocs, "--site-dir", target, *options], cwd=source, check=True)


def build_release(version: str, target: Path) -> bool:
    """Build the site of a release from its tag. Return whether it has one."""
    with tempfile.TemporaryDirectory(prefix="leveret-site-") as directory:
        with tarfile.open(fileobj=io.BytesIO(git("archive", f"v{version}"))) as archive:
            archive.extractall(directory)
        if not Path(directory, "mkdocs.yml").is_file():
            return False
        build(Path(directory), target)
    return True


def build_site(site: Path) -> None:
    """Build all versions into a directory, which is replaced."""
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir(parents=True)
    versions = []
    for version in releases():
        name = version.rpartition(".")[0]
        print(f"Building the documentation of {version}", flush=True)
        if build_release(version, site / name):
            versions.append({"version": name, "title": version, "aliases": []})
    print("Building the documentation of this checkout", flush=True)
    build(ROOT, site / DEVELOPMENT, "--strict")
    versions.append({"version": DEVELOPMENT, "title": DEVELOPMENT, "aliases": []})
    (site / "versions.json").write_text(json.dumps(versions, indent=1) + "\n", encoding="utf-8")
    # Readers who name no version get the newest release.
    (site / "index.html").write_text(REDIRECT.format(versions[0]["version"]), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the documentation of this checkout and of all releases.")
    parser.add_argument("--site", type=Path, default=ROOT / "site", metavar="DIR", help="directory to replace [site]")
    options = parser.parse_args()
    build_site(options.site.resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())

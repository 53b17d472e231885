"""Vendor the console's JavaScript libraries: `python tools/vendor_console.py`. `make lint` runs it with `--check`.

The libraries are files of npm packages at pinned versions. The script fetches the packages with npm, verifies their
hashes, and rewrites imports of packages as relative URLs, so that browsers need neither a build step nor an import map.
`vendor.json` lists packages, licences and the hashes of the written files, which `--check` verifies without a network.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
VENDOR = ROOT / "src/leveret/management/console/vendor"
MANIFEST = "vendor.json"


@dataclass(frozen=True)
class Package:
    """An npm package.

    Attributes:
        name: The name.
        version: The version.
        license: The SPDX identifier.
        integrity: The hash of the archive, as npm states it.
        files: The written files by the files of the package.
    """

    name: str
    version: str
    license: str
    integrity: str
    files: dict[str, str]


def _directory(source: str, target: str, *names: str) -> dict[str, str]:
    """Return the written files of modules that import each other by relative URLs."""
    return {f"{source}/{name}": f"{target}/{name}" for name in names}


PACKAGES = (
    Package(
        "preact",
        "11.2.0",
        "MIT",
        "sha512-/HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg==",
        {"dist/preact.mjs": "preact.js", "hooks/dist/hooks.mjs": "preact-hooks.js"},
    ),
    Package(
        "@preact/signals-core",
        "1.14.5",
        "MIT",
        "sha512-vcRv7Ityz5JVmeiVqIluLFzT/PDS/AlhHUpw3/aUWqcVUs6bDGIPXE/6RSC4evBNWYvnniozg5Syfj33al3gkg==",
        {"dist/signals-core.mjs": "preact-signals-core.js"},
    ),
    Package(
        "@preact/signals",
        "2.11.4",
        "MIT",
        "sha512-Rb+5RPo9gWSaHtzJeauhHxiC8KP/IF2DEPkHPEOGOnuy2wnJzRqyeLRankUCYd6ADqtxS6GnWGv6Ie343d8aYw==",
        {"dist/signals.mjs": "preact-signals.js"},
    ),
    Package(
        "htm",
        "3.1.1",
        "Apache-2.0",
        "sha512-983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==",
        {"dist/htm.mjs": "htm.js"},
    ),
    Package(
        "uplot",
        "1.6.32",
        "MIT",
        "sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
        {"dist/uPlot.esm.js": "uplot.js", "dist/uPlot.min.css": "uplot.css"},
    ),
    Package(
        "@dagrejs/dagre",
        "3.1.3",
        "MIT",
        "sha512-X4aUTwOReZvthaZWOVHqlJ52/ZdhZFEM4+Lh/uR4XooUSLE6p71bcy7MPGzYnNUcNh+nj+i/qJQpCMIdQnSmrg==",
        {"dist/dagre.esm.js": "dagre.js"},
    ),
    Package(
        "@msgpack/msgpack",
        "3.1.3",
        "ISC",
        "sha512-47XIizs9XZXvuJgoaJUIE2lFoID8ugvc0jzSHP+Ptfk8nTbnR8g788wv48N03Kx0UkAv559HWRQ3yzOgzlRNUA==",
        _directory(
            "dist.esm",
            "msgpack",
            "CachedKeyDecoder.mjs",
            "DecodeError.mjs",
            "Decoder.mjs",
            "ExtData.mjs",
            "ExtensionCodec.mjs",
            "timestamp.mjs",
            "utils/int.mjs",
            "utils/prettyByte.mjs",
            "utils/typedArrays.mjs",
            "utils/utf8.mjs",
        ),
    ),
    Package(
        "cborg",
        "6.1.5",
        "Apache-2.0",
        "sha512-1aoxfkckZmul5tFUL0p1+VRiZrXUGMxk6JQVpVv42yD21K7fh86L5WlyYgzsNv4w6Nm9ysQI9c6yDemom24HUQ==",
        _directory(
            "lib",
            "cborg",
            "0uint.js",
            "1negint.js",
            "2bytes.js",
            "3string.js",
            "4array.js",
            "5map.js",
            "6tag.js",
            "7float.js",
            "byte-utils.js",
            "common.js",
            "decode.js",
            "jump.js",
            "token.js",
        ),
    ),
    Package(
        "fzstd",
        "0.1.1",
        "MIT",
        "sha512-dkuVSOKKwh3eas5VkJy1AW1vFpet8TA/fGmVA5krThl8YcOVE/8ZIoEA1+U1vEn5ckxxhLirSdY837azmbaNHA==",
        {"esm/index.mjs": "fzstd.js"},
    ),
)

# Imports by package, as the files of other packages name them.
IMPORTS = {
    "preact": "./preact.js",
    "preact/hooks": "./preact-hooks.js",
    "@preact/signals-core": "./preact-signals-core.js",
}
IMPORT = re.compile(r"""(\bfrom\s*|\bimport\s*)(["'])(@?[\w/-]+)\2""")
SOURCE_MAP = re.compile(r"\n?//# sourceMappingURL=\S+\s*$")


def rewrite(source: str) -> str:
    """Return a module with relative imports and without its reference to a source map. Raises `KeyError`."""
    return IMPORT.sub(lambda found: f"{found[1]}{found[2]}{IMPORTS[found[3]]}{found[2]}", SOURCE_MAP.sub("\n", source))


def fetch(package: Package, directory: Path) -> Path:
    """Fetch the archive of a package with npm. Raises `ValueError` if its hash differs."""
    command = ["npm", "pack", f"{package.name}@{package.version}", "--json", "--pack-destination", str(directory)]
    before = set(directory.iterdir())
    subprocess.run(command, check=True, stdout=subprocess.PIPE)
    (archive,) = set(directory.iterdir()) - before
    found = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != package.integrity:
        raise ValueError(f"{package.name} {package.version} has the hash '{found}'; expected '{package.integrity}'")
    return archive


def unpack(package: Package, archive: Path, target: Path) -> dict[str, str]:
    """Write the files of a package, and its licence. Return their hashes by name."""
    license_name = f"{package.name.removeprefix('@').replace('/', '-')}.LICENSE"
    hashes = {}
    with tarfile.open(archive) as members:
        for source, name in {**package.files, "LICENSE": license_name}.items():
            member = members.extractfile(f"package/{source}")
            assert member is not None, source
            content = member.read()
            if name.endswith((".js", ".mjs")):
                content = rewrite(content.decode()).encode()
            (target / name).parent.mkdir(exist_ok=True, parents=True)
            (target / name).write_bytes(content)
            hashes[name] = hashlib.sha256(content).hexdigest()
    return hashes


def vendor(target: Path) -> None:
    """Write all files and the manifest, and remove other files."""
    target.mkdir(parents=True, exist_ok=True)
    entries = []
    with tempfile.TemporaryDirectory() as temporary:
        for package in PACKAGES:
            files = unpack(package, fetch(package, Path(temporary)), target)
            entries.append(_entry(package) | {"files": files})
    expected = {MANIFEST, *(name for entry in entries for name in entry["files"])}
    for name in _files(target):
        if name not in expected:
            (target / name).unlink()
    (target / MANIFEST).write_text(json.dumps(entries, indent=2) + "\n", "utf-8")


def _files(target: Path) -> list[str]:
    """Return the names of all files, relative to the directory."""
    return sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())


def _entry(package: Package) -> dict[str, Any]:
    return {
        "name": package.name,
        "version": package.version,
        "license": package.license,
        "integrity": package.integrity,
    }


def problems(target: Path) -> list[str]:
    """Return the differences between the files, the manifest and the pinned packages."""
    entries = json.loads((target / MANIFEST).read_text("utf-8"))
    found = []
    if [{key: entry[key] for key in _entry(PACKAGES[0])} for entry in entries] != [_entry(package) for package in PACKAGES]:
        found.append(f"{MANIFEST} lists other packages than tools/vendor_console.py")
    hashes = {name: digest for entry in entries for name, digest in entry["files"].items()}
    unknown = [name for name in _files(target) if name != MANIFEST and name not in hashes]
    found += [f"{name} is not a file of a vendored package" for name in unknown]
    for name, digest in hashes.items():
        path = target / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            found.append(f"{name} is missing or modified")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Vendor the console's JavaScript libraries.")
    parser.add_argument("--check", action="store_true", help="verify the hashes of the vendored files")
    if not parser.parse_args().check:
        vendor(VENDOR)
    found = problems(VENDOR)
    for problem in found:
        print(f"{problem}; run tools/vendor_console.py", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Build a Debian package: `python -m tools.build_deb`, or `make deb`, after `make wheels`.

The package contains the wheel that fits the machine's own Python, with its dependencies, in a virtual environment in
/usr/lib/leveret. `deploy/debian` has its control file, its configuration and its maintainer scripts. Needs dpkg-deb.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from tools.build_wheels import ROOT, BuildFailed, install, run, version_of

DEBIAN = ROOT / "deploy" / "debian"
UNIT = ROOT / "docs" / "systemd" / "leveret.service"
# The Python of Debian, which the installed package runs on.
PYTHON = Path("/usr/bin/python3")
HOME = "usr/lib/leveret"
EXTRAS = "management,websocket,cluster"
LAUNCHER = f"""\
#!/{HOME}/bin/python3 -I
import sys

from leveret.cli import main

sys.exit(main())
"""


def debian_version(wheel: Path) -> str:
    """Return the version of a wheel as Debian writes it, in which a pre-release is older than its release."""
    version = wheel.name.split("-")[1]
    for mark in (".dev", "rc", "b", "a"):
        version = version.replace(mark, f"~{mark.lstrip('.')}")
    return version


def find_wheel(dist: Path, python: Path = PYTHON) -> Path:
    """Return the wheel for an interpreter: the compiled one, or else the pure one. Raises `BuildFailed` without either."""
    tag = f"cp{version_of(python).replace('.', '')}"
    found = [*dist.glob(f"leveret-*-{tag}-{tag}-*.whl"), *dist.glob("leveret-*-py3-none-any.whl")]
    if not found:
        raise BuildFailed(f"{dist} has no wheel for {python} ({tag}); run make wheels first")
    return found[0]


def build(
    populate: Callable[[Path], None], wheel: Path, output: Path, compression: str = "xz", python: Path = PYTHON
) -> Path:
    """Build the package.

    Args:
        populate: Installs Leveret and its dependencies into a virtual environment.
        wheel: The wheel of the package, which has its version and its license.
        output: The directory to write to.
        compression: A value of the option `-Z` of dpkg-deb.
        python: The interpreter that the package depends on.

    Returns:
        The path of the package.

    Raises:
        BuildFailed: A command failed.
    """
    with tempfile.TemporaryDirectory(prefix="leveret-deb-") as work:
        tree = Path(work, "leveret")
        environment = tree / HOME
        run(python, "-m", "venv", "--without-pip", environment)
        populate(environment)
        _relocate(environment, python)
        major, minor = map(int, version_of(python).split("."))
        _add_files(tree, wheel)
        size = sum(path.lstat().st_size for path in tree.rglob("*")) // 1024
        architecture = run("dpkg", "--print-architecture").strip()
        control = (DEBIAN / "control").read_text(encoding="utf-8")
        fields = {
            "version": debian_version(wheel),
            "architecture": architecture,
            "size": size,
            "python": f"{major}.{minor}",
            "next_python": f"{major}.{minor + 1}",
        }
        _write(tree / "DEBIAN" / "control", control.format_map(fields))
        _write(tree / "DEBIAN" / "conffiles", "/etc/leveret/leveret.toml\n")
        for name in ("postinst", "prerm", "postrm"):
            _write(tree / "DEBIAN" / name, (DEBIAN / name).read_text(encoding="utf-8"), 0o755)
        output.mkdir(parents=True, exist_ok=True)
        package = output / f"leveret_{fields['version']}_{architecture}.deb"
        run("dpkg-deb", "--root-owner-group", f"-Z{compression}", "--build", tree, package)
    return package


def _relocate(environment: Path, python: Path) -> None:
    """Make a virtual environment into that of the installed package, with bytecode."""
    for path in environment.glob("bin/*"):
        if not path.name.startswith("python"):
            path.unlink()
    _write(environment / "bin" / "leveret", LAUNCHER, 0o755)
    _write(environment / "pyvenv.cfg", f"home = {python.parent}\ninclude-system-site-packages = false\n")
    # With the hash of the sources, which dpkg's times do not affect.
    compile_all = ("-m", "compileall", "-q", "-s", environment, "-p", f"/{HOME}", "--invalidation-mode", "unchecked-hash")
    run(environment / "bin" / "python3", *compile_all, environment / "lib")


def _add_files(tree: Path, wheel: Path) -> None:
    """Add the files outside of the virtual environment."""
    command = tree / "usr" / "bin" / "leveret"
    command.parent.mkdir(parents=True)
    command.symlink_to(f"/{HOME}/bin/leveret")
    _write(tree / "etc" / "leveret" / "leveret.toml", (DEBIAN / "leveret.toml").read_text(encoding="utf-8"), 0o640)
    units = tree / "usr" / "lib" / "systemd" / "system"
    _write(units / "leveret.service", UNIT.read_text(encoding="utf-8"))
    _write(units / "leveret.service.d" / "package.conf", (DEBIAN / "service.conf").read_text(encoding="utf-8"))
    with zipfile.ZipFile(wheel) as archive:
        licenses = {Path(name).name: archive.read(name).decode() for name in archive.namelist() if "/licenses/" in name}
    notice, license_text = licenses["NOTICE"], licenses["LICENSE"]
    _write(tree / "usr" / "share" / "doc" / "leveret" / "copyright", f"{notice}\n{license_text}")


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def main() -> int:
    parser = argparse.ArgumentParser(description="Build a Debian package from the wheels in dist/.")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", metavar="DIR", help="directory of the wheels [dist]")
    parser.add_argument("--extras", default=EXTRAS, metavar="NAMES", help=f"extras to include [{EXTRAS}]")
    options = parser.parse_args()
    try:
        wheel = find_wheel(options.dist.resolve())
        print(f"Packaging {wheel.name} for {PYTHON}", flush=True)
        package = build(lambda environment: install(environment, wheel, options.extras), wheel, options.dist)
    except BuildFailed as error:
        print(f"cannot build the package: {error}", file=sys.stderr)
        return 1
    print(f"{package.stat().st_size / 1e6:6.1f} MB  {package.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The Debian package: installed, run, upgraded, removed and purged in a copy of this machine's system, without systemd."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.broker import ROOT, free_port
from tests.support.installs import copy_checkout, install
from tools import build_deb, build_wheels

DEBIAN = ROOT / "deploy" / "debian"
TIMEOUT = 240
# Mounts a writable copy of the system in memory, and runs the script $3 in it, with the package $2 as /leveret.deb.
COPY = """
mount -t tmpfs tmpfs "$1" && cd "$1" && mkdir upper work root
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
mount -t proc proc root/proc && mount --rbind /dev root/dev
[ -z "$2" ] || cp "$2" root/leveret.deb
exec chroot root /bin/sh -exc "$3"
"""
AS_LEVERET = "setpriv --reuid leveret --regid leveret --clear-groups env --ignore-environment PATH=/usr/bin:/bin"
INSTALL = f"""
dpkg --force-unsafe-io -i /leveret.deb
test "$(stat -c %U:%G:%a /var/lib/leveret)" = leveret:leveret:700
test "$(stat -c %U:%G:%a /etc/leveret/leveret.toml)" = root:leveret:640
test -L /etc/systemd/system/multi-user.target.wants/leveret.service

{AS_LEVERET} $COMMAND --port $PORT --set management.port=$HTTP --set management.metrics_enabled=false \\
    --ready-file /var/lib/leveret/ready >/log 2>&1 &
broker=$!
until [ -e /var/lib/leveret/ready ]; do kill -0 $broker || {{ cat /log; exit 1; }}; sleep 0.1; done
{AS_LEVERET} leveret queues add hello --data-dir /var/lib/leveret
leveret publish hello 'from the package' --url amqp://guest:guest@localhost:$PORT/
leveret get hello --url amqp://guest:guest@localhost:$PORT/ | grep 'from the package'
grep "console     http://127.0.0.1:$HTTP/" /log
kill $broker && wait $broker

echo '# mine' >>/etc/leveret/leveret.toml
dpkg --force-unsafe-io -i /leveret.deb
grep '# mine' /etc/leveret/leveret.toml

dpkg -r leveret
test ! -e /usr/lib/leveret && test ! -e /usr/bin/leveret && test ! -e /lib/systemd/system/leveret.service
test -e /var/lib/leveret/log-0.sqlite && grep '# mine' /etc/leveret/leveret.toml
dpkg -P leveret
test ! -e /var/lib/leveret && test ! -e /etc/leveret
test ! -L /etc/systemd/system/multi-user.target.wants/leveret.service
"""


def in_copy(directory: Path, script: str, package: Path | None = None, **variables: str) -> str:
    """Run a script in a copy of the system that only this process sees, and return its output."""
    alone = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
    done = subprocess.run(
        [*alone, "sh", "-ec", COPY, "sh", directory, package or "", script],
        env={"PATH": os.environ["PATH"], "DEBIAN_FRONTEND": "noninteractive"} | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@cache
def python_version() -> str:
    return build_wheels.version_of(build_deb.PYTHON)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of the pure wheel, with copies of the libraries that the tests run with."""
    if shutil.which("dpkg-deb") is None or python_version() != f"{sys.version_info.major}.{sys.version_info.minor}":
        pytest.skip(f"needs dpkg-deb, and {build_deb.PYTHON} in the version of {sys.executable}")
    source, dist = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    copy_checkout(source)
    build_wheels.build_pure(source, dist)
    wheel = build_deb.find_wheel(dist)

    def populate(environment: Path) -> None:
        install(environment, wheel, "management")
        [site] = (environment / "lib").glob("python*/site-packages")
        linked = site.rename(site.with_name("linked"))
        shutil.copytree(linked, site, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.rmtree(linked)

    return build_deb.build(populate, wheel, dist, compression="none")


@pytest.mark.slow
def test_the_package_is_installed_runs_and_is_purged(package: Path, tmp_path: Path) -> None:
    try:
        in_copy(tmp_path, "true")
    except (AssertionError, OSError) as error:
        pytest.skip(f"needs root and overlay mounts: {error}")
    [command] = [
        line.removeprefix("ExecStart=/usr/bin/")
        for line in (DEBIAN / "service.conf").read_text("utf-8").splitlines()
        if line.startswith("ExecStart=/")
    ]
    in_copy(tmp_path, INSTALL, package, COMMAND=command, PORT=str(free_port()), HTTP=str(free_port()))


@pytest.mark.parametrize(
    ("version", "expected"), [("1.2.0", "1.2.0"), ("1.2.0rc1", "1.2.0~rc1"), ("1.2.0.dev3", "1.2.0~dev3")]
)
def test_a_pre_release_is_older_than_its_release(version: str, expected: str) -> None:
    assert build_deb.debian_version(Path(f"leveret-{version}-py3-none-any.whl")) == expected


def test_the_package_takes_the_compiled_wheel_for_its_python(tmp_path: Path) -> None:
    if not python_version():
        pytest.skip(f"{build_deb.PYTHON} is not installed")
    with pytest.raises(build_wheels.BuildFailed, match=r"has no wheel for /usr/bin/python3 .* run make wheels first"):
        build_deb.find_wheel(tmp_path)
    tag = f"cp{python_version().replace('.', '')}"
    (tmp_path / "leveret-1-cp399-cp399-manylinux_2_17_x86_64.whl").touch()
    for name in ("leveret-1-py3-none-any.whl", f"leveret-1-{tag}-{tag}-manylinux_2_17_x86_64.whl"):
        (tmp_path / name).touch()
        assert build_deb.find_wheel(tmp_path).name == name


@pytest.mark.parametrize("name", ["postinst", "prerm", "postrm"])
def test_maintainer_scripts_are_valid(name: str) -> None:
    subprocess.run(["sh", "-n", DEBIAN / name], check=True)

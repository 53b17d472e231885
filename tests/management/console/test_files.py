"""The files of the console as the HTTP process serves them."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import shutil
from pathlib import Path

import pytest

from leveret.management.http.console import FILES
from tests.management.http.client import HttpBroker
from tests.support.broker import LeveretProcess, basic_config
from tools import document_arguments, vendor_console

Headers = dict[str, str]


def fetch(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, Headers, bytes]:
    """Send a request to a path exactly as given."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def version(port: int) -> str:
    """Return the version in the paths of the files."""
    found = re.search(rb"console/([0-9a-f]{16})/app/main\.js", fetch(port, "/")[2])
    assert found is not None
    return found[1].decode()


def test_the_index(api: HttpBroker) -> None:
    status, headers, content = fetch(api.port, "/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"<title>Leveret</title>" in content
    assert b"<script>" not in content and b"style=" not in content
    status, again, content = fetch(api.port, "/", if_none_match=headers["etag"])
    assert (status, content) == (304, b"")
    assert again["etag"] == headers["etag"]


@pytest.mark.parametrize("path", ["/", "/console/routes.json", "/console/missing.js"])
def test_security_headers(api: HttpBroker, path: str) -> None:
    headers = fetch(api.port, path)[1]
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert policy["trusted-types"] == "leveret-decoder"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"


def test_every_file(api: HttpBroker) -> None:
    root = f"/console/{version(api.port)}"
    for path in FILES.rglob("*"):
        if not path.is_file() or path.name == "index.html":
            continue
        status, headers, content = fetch(api.port, f"{root}/{path.relative_to(FILES).as_posix()}")
        assert (status, content) == (200, path.read_bytes())
        assert "immutable" in headers["cache-control"]
        assert headers["content-type"].split("/")[0] in ("text", "application", "image")


def test_compression(api: HttpBroker) -> None:
    path = f"/console/{version(api.port)}/style.css"
    plain = fetch(api.port, path)[2]
    status, headers, content = fetch(api.port, path, accept_encoding="gzip, br")
    assert (status, headers["content-encoding"], gzip.decompress(content)) == (200, "gzip", plain)
    assert len(content) < len(plain) / 3
    assert fetch(api.port, path, "HEAD")[2] == b""


def test_the_list_of_the_apis_paths(api: HttpBroker) -> None:
    routes = json.loads(fetch(api.port, "/console/routes.json")[2])
    assert routes["/queues/{vhost}/{name}"] == ["DELETE", "GET", "PUT"]


@pytest.mark.parametrize(
    "path",
    [
        "/console/",
        "/console/VERSION/",
        "/console/VERSION/app",
        "/console/VERSION/app/missing.js",
        "/console/VERSION/../../http/app.py",
        "/console/VERSION/%2e%2e/%2e%2e/http/app.py",
        "/console/VERSION/..%2f..%2fhttp/app.py",
        "/console/VERSION/app/../index.html",
        "/console/VERSION//etc/passwd",
        "/console/VERSION/app/main.js%00",
        "/console/VERSION/app%2Fmain.js",
        "/console/0000000000000000/app/main.js",
    ],
)
def test_paths_that_are_no_files(api: HttpBroker, path: str) -> None:
    status, _, content = fetch(api.port, path.replace("VERSION", version(api.port)))
    assert (status, content) == (404, b"")


def test_other_methods(api: HttpBroker) -> None:
    status, headers, _ = fetch(api.port, "/", "POST")
    assert (status, headers["allow"]) == (405, "GET, HEAD")


def test_a_path_prefix(tmp_path: Path) -> None:
    environment = {
        "LEVERET_MANAGEMENT__ENABLED": "true",
        "LEVERET_MANAGEMENT__PORT": "0",
        "LEVERET_MANAGEMENT__PATH_PREFIX": "/broker",
    }
    with LeveretProcess(tmp_path, config=basic_config(), environment=environment).start() as process:
        api = HttpBroker(process, "/broker")
        assert fetch(api.port, "/broker/")[0] == 200
        status, headers, _ = fetch(api.port, "/broker")
        assert (status, headers["location"]) == (308, "/broker/")
        assert fetch(api.port, "/")[0] == 404
        assert api.get("/whoami")["name"] == "guest"


def test_vendored_libraries() -> None:
    assert vendor_console.problems(FILES / "vendor") == []


def test_known_arguments() -> None:
    found = (FILES / "app" / "arguments.js").read_text("utf-8")
    assert found == document_arguments.document(), "run `python tools/document_arguments.py` with the path of arguments.js"


def test_imports_of_packages_become_relative() -> None:
    source = (
        'import{h}from"preact";import*as hooks from \'preact/hooks\';export*from"./own.js";\n//# sourceMappingURL=a.map\n'
    )
    expected = 'import{h}from"./preact.js";import*as hooks from \'./preact-hooks.js\';export*from"./own.js";\n'
    assert vendor_console.rewrite(source) == expected
    with pytest.raises(KeyError):
        vendor_console.rewrite('import x from "another-package"')


def test_a_modified_library(tmp_path: Path) -> None:
    shutil.copytree(FILES / "vendor", tmp_path, dirs_exist_ok=True)
    (tmp_path / "htm.js").write_bytes(b"export default 1")
    (tmp_path / "new.js").write_bytes(b"")
    assert vendor_console.problems(tmp_path) == [
        "new.js is not a file of a vendored package",
        "htm.js is missing or modified",
    ]


def test_no_module_makes_markup_of_text() -> None:
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|document\.write|\beval\(|new Function"
    )
    for path in (FILES / "app").rglob("*.js"):
        assert not forbidden.search(path.read_text("utf-8")), path

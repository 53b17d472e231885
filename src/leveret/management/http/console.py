"""The web console: its files, and the list of the API's paths, by which the console shows only what the API offers."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.responses import Response

from leveret.management.http.settings import HttpSettings
from leveret.management.http.table import ROUTES

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

FILES: Final = Path(__file__).resolve().parents[1] / "console"
_INDEX: Final = "index.html"
# The mark in the index that stands for the version of the files.
_VERSION: Final = b"{version}"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain; charset=utf-8",
}
# The version in its path changes with every change of a file.
_IMMUTABLE: Final = "public, max-age=31536000, immutable"
_REVALIDATE: Final = "no-cache"
_POLICY: Final = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    # No script can turn text into markup. The only trusted type is the URL of the worker that decodes payloads.
    "require-trusted-types-for 'script'",
    "trusted-types leveret-decoder",
)
_HEADERS: Final = {
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "vary": "accept-encoding",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class _File:
    def __init__(self, content: bytes, media_type: str, caching: str, security: Mapping[str, str]) -> None:
        self.content = content
        self.compressed = gzip.compress(content, 6, mtime=0)
        self.headers = {
            **security,
            "cache-control": caching,
            "content-type": media_type,
            "etag": f'"{_digest([content])}"',
        }

    def answer(self, method: str, headers: dict[str, str]) -> Response:
        if headers.get("if-none-match") == self.headers["etag"]:
            return Response(status_code=304, headers=self.headers)
        response = Response(self.content, headers=self.headers)
        if "gzip" in headers.get("accept-encoding", ""):
            response = Response(self.compressed, headers={**self.headers, "content-encoding": "gzip"})
        if method == "HEAD":
            response.body = b""
        return response


class Console:
    """Serves the console at the path prefix, and passes other requests to the API.

    Args:
        settings: The settings of the process.
        api: The application of the API.
    """

    def __init__(self, settings: HttpSettings, api: ASGIApp) -> None:
        self._api = api
        self._root = f"{settings.path_prefix}/"
        self._security = {**_HEADERS, "content-security-policy": _policy(settings)}
        documentation = f"{self._root}api/index.html"
        # RabbitMQ's paths of its documentation and of its command line, which the documentation describes.
        self._moved = {
            f"{self._root}api/": documentation,
            f"{self._root}cli/": f"{self._root}cli/index.html",
            f"{self._root}cli/index.html/": documentation,
        }
        self._files = _load(self._root, self._security)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["raw_path"].decode("latin-1") if scope["type"] == "http" else ""
        if path + "/" == self._root:
            response = Response(status_code=308, headers={**self._security, "location": self._root})
        elif path.removesuffix("/") + "/" in self._moved and scope["method"] in ("GET", "HEAD"):
            location = self._moved[path.removesuffix("/") + "/"]
            response = Response(status_code=301, headers={**self._security, "location": location})
            del response.headers["vary"]
        elif path == self._root or path.startswith(f"{self._root}console/"):
            response = self._answer(scope, path)
        else:
            await self._api(scope, receive, send)
            return
        await response(scope, receive, send)

    def _answer(self, scope: Scope, path: str) -> Response:
        found = self._files.get(path)
        if found is None:
            return Response(status_code=404, headers=self._security)
        if scope["method"] not in ("GET", "HEAD"):
            return Response(status_code=405, headers={**self._security, "allow": "GET, HEAD"})
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        return found.answer(scope["method"], headers)


def _policy(settings: HttpSettings) -> str:
    """Return the content security policy. The console talks to the broker, and to the providers that users sign in at."""
    origins = dict.fromkeys(origin for client in settings.oauth_clients for origin in client.origins)
    return "; ".join((*_POLICY, " ".join(("connect-src 'self'", *origins))))


def _load(root: str, security: Mapping[str, str]) -> dict[str, _File]:
    """Return all files by their paths."""
    contents = {
        path.relative_to(FILES).as_posix(): path.read_bytes() for path in sorted(FILES.rglob("*")) if path.is_file()
    }
    index = contents.pop(_INDEX)
    version = _digest(part for name, content in contents.items() for part in (name.encode(), content))[:16]
    routes = msgspec.json.encode({path: sorted(methods) for path, methods in ROUTES.items()})
    files = {
        root: _File(index.replace(_VERSION, version.encode()), _TYPES[".html"], _REVALIDATE, security),
        f"{root}console/routes.json": _File(routes, _TYPES[".json"], _REVALIDATE, security),
    }
    for name, content in contents.items():
        files[f"{root}console/{version}/{name}"] = _File(content, _TYPES[Path(name).suffix], _IMMUTABLE, security)
    return files


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()

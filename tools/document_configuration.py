"""Generate `docs/configuration.md` from the structs: `python tools/document_configuration.py [--check] PATH`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from leveret.config.model import Config
from leveret.config.schema import Key, Table, schema_of
from leveret.config.values import Setting
from leveret.node.choices import CHOICES

_HEAD = """\
# Configuration

<!-- Generated from src/leveret/config/model.py by `python tools/document_configuration.py`. Do not edit. -->

Leveret runs without any configuration. Set the [keys](#keys) that you want to change in any of these places; later places
override earlier ones:

1. A TOML file: `leveret serve --config leveret.toml`, or the environment variable `LEVERET_CONFIG`.
2. Environment variables: `LEVERET_`, then section and key separated by two underscores, as in
   `LEVERET_SERVER__PORT=5673`. Section and key are not case-sensitive; names of users and vhosts are:
   `LEVERET_USERS__alice__PASSWORD`. Separate the items of a list with commas.
3. Flags of `leveret serve`: `--host`, `--port`, `--data-dir` and `--log-level`, and for any other key
   `--set server.port=5673`.

```toml
[server]
host = ""
data_dir = "/var/lib/leveret"

[tls]
cert = "server.pem"
key = "server-key.pem"

[limits]
memory_high_watermark = "50%"

[users.alice]
password_file = "alice.password"
tags = ["administrator"]
permissions."/" = { configure = ".*", write = ".*", read = ".*" }

[users.shop]
password_hash = "$argon2id$v=19$m=7168,t=5,p=1$..."
permissions.orders = { configure = "^shop-", write = "^(shop-|amq\\\\.topic$)", read = "^shop-" }

[vhosts.orders]
limits.max_queues = 1000
```

The broker refuses to start if a key is unknown or a value is invalid, and names all such keys. [`leveret
config`](cli.md#config) checks a configuration without a start, shows where each value comes from, and compares it with
that of the running broker.

## Keys

- **Sizes** are a number of bytes, or a string with a unit: `"64MiB"` is 67,108,864, `"64MB"` is 64,000,000.
- **Seconds** are a number, or a string with a unit: `"500ms"`, `"30s"`, `"10min"`, `"2h"`.
- **Paths** in the file are relative to the file's directory, other paths to the working directory; `~` is the home
  directory.
- **Names.** `NAME` stands for the name of a user or shovel, `VHOST` for that of a vhost, `REALM` for that of a realm.
  Each has its own table, as in `[users.alice]` or `[vhosts."/"]`.

| key | value | default | meaning |
| --- | --- | --- | --- |
"""

_TAIL = """
## Reloading

On SIGHUP, `leveret serve` rereads the file, with the same environment and flags. It does not apply a file with an error.

- `tls.cert`, `tls.key`, `tls.key_password_file`, `tls.ca`: new connections use the new certificates, if a TLS listener
  existed before.
- `users`: logins and operations use the new users, passwords, permissions and limits. Removed users are disconnected.
- `limits`: `unacked_per_channel` applies to new channels, the other limits also to existing connections. Existing objects
  above a new limit are kept.
- `vhosts`: new vhosts are created. `limits` and `compat.strict` apply at once, `qos_global` and `consumer_timeout` to new
  connections. A vhost that you remove from the file keeps its contents. Its settings are those that
  `leveret vhosts change` set, or the defaults. `leveret vhosts delete` deletes it.
- All other keys apply after a restart; the broker logs a warning if they change.

Settings of queues and exchanges that change at run time are [policies](policies.md).

## Other environment variables

| variable | meaning |
| --- | --- |
| `LEVERET_CONFIG` | path of the configuration file, if `--config` is not given |
| `LEVERET_PURE` | `1`: run the plain Python files even if compiled ones exist |
"""


_PLACEHOLDERS = {
    "users": "NAME",
    "permissions": "VHOST",
    "vhosts": "VHOST",
    "realms": "REALM",
    "providers": "NAME",
    "oauth_providers": "NAME",
    "scope_aliases": "SCOPE",
    "webhooks": "NAME",
    "shovels": "NAME",
}


def document() -> str:
    """Return the text of the page."""
    lines = [
        f"| `{key}` | {_cell(value)} | {default} | {_cell(meaning)} |\n"
        for key, value, default, meaning in _rows(schema_of(Config, CHOICES), "")
    ]
    return _HEAD + "".join(lines) + _TAIL


def _rows(table: Table, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    for name, node in table.keys.items():
        key = f"{prefix}{name}"
        if isinstance(node, Key):
            yield key, node.expected, _default(node.default), node.description
        elif node.each is not None:
            yield from _rows(node.each, f"{key}.{_PLACEHOLDERS[name]}.")
        else:
            yield from _rows(node, f"{key}.")


def _default(value: Setting) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, list):
        return "`[" + ", ".join(f'"{item}"' for item in value) + "]`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> int:
    """Write the page. With --check, only compare it and return 1 if it is out of date."""
    check = "--check" in arguments
    path = Path(next((argument for argument in arguments if not argument.startswith("--")), "docs/configuration.md"))
    if check:
        current = path.exists() and path.read_text("utf-8") == document()
        if not current:
            print(f"{path} is out of date: run `python tools/document_configuration.py {path}`", file=sys.stderr)
        return 0 if current else 1
    path.write_text(document(), "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""`docs/configuration.md`, made from the structs: `python -m leveret.config.document [--check] PATH`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from leveret.config.model import Config
from leveret.config.schema import Key, Table, schema_of

_HEAD = """\
# Configuration

<!-- Made from src/leveret/config/model.py by `python -m leveret.config.document`: change it there. -->

Leveret runs without any configuration. What you change comes from three places, later ones winning:

1. a TOML file: `leveret serve --config leveret.toml`, or the environment variable `LEVERET_CONFIG`;
2. environment variables: `LEVERET_`, then section and key with two underscores between them, as in
   `LEVERET_SERVER__PORT=5673`. Section and key may be written in any case, the names of users and vhosts are taken as
   written: `LEVERET_USERS__alice__PASSWORD`. Lists are separated by commas;
3. flags of `leveret serve`: `--host`, `--port`, `--data-dir` and `--log-level`, and for any other key
   `--set server.port=5673`.

A key that does not exist, or a value that does not fit, is refused at the start, by name.

Octets are a number or a text with a unit: `"64MiB"` is 67,108,864, `"64MB"` is 64,000,000. Seconds are a number or a
text with a unit: `"500ms"`, `"30s"`, `"10min"`, `"2h"`. A path in the file is relative to the file's directory, another
one to the working directory; `~` is the home directory. `NAME` stands for the name of a user, `VHOST` for that of a
vhost: each has a table of its own, as in `[users.alice]` or `[vhosts."/"]`.

| key | value | default | meaning |
| --- | --- | --- | --- |
"""

_TAIL = """
An example:

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

## What a running broker takes over

On SIGHUP `leveret serve` reads the file again, with the same environment and flags. A file that has a mistake changes
nothing.

- `tls.cert`, `tls.key`, `tls.key_password_file`, `tls.ca`: new connections get the new certificates, if there was a TLS
  listener before.
- `users`: logins and operations from now on go by the new users, passwords, permissions and limits. Users that are gone are
  disconnected.
- `limits`: they hold from now on, `unacked_per_channel` for new channels and the others also for connections that exist;
  what was granted before stays.
- `vhosts`: new ones are made. `limits` and `compat.strict` hold at once, `qos_global` and `consumer_timeout` for new
  connections. A vhost that is gone from the file stays, with everything in it, and has the settings that `leveret vhosts
  change` gave it, or the default ones; `leveret vhosts delete` deletes it.
- All others wait for the next start, and the log says so.

When `compat.strict` is taken away from a vhost, its queues keep the delivery limit that they have of it until the next
start.

## Environment variables that are no keys

| variable | meaning |
| --- | --- |
| `LEVERET_CONFIG` | path of the configuration file, where `--config` is not given |
| `LEVERET_PURE` | `1`: run the plain Python files although compiled ones are there |
"""


_PLACEHOLDERS = {"users": "NAME", "permissions": "VHOST", "vhosts": "VHOST", "realms": "REALM"}


def document() -> str:
    """The whole page."""
    lines = [f"| `{key}` | {_cell(value)} | {default} | {_cell(meaning)} |\n"
             for key, value, default, meaning in _rows(schema_of(Config), "")]
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


def _default(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, list):
        return "`[" + ", ".join(f'"{one}"' for one in value) + "]`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> int:
    """Write the page, or with --check compare it: 1 where it is not current."""
    check = "--check" in arguments
    path = Path(next((one for one in arguments if not one.startswith("--")), "docs/configuration.md"))
    if check:
        current = path.exists() and path.read_text("utf-8") == document()
        if not current:
            print(f"{path} is not current: run `python -m leveret.config.document {path}`", file=sys.stderr)
        return 0 if current else 1
    path.write_text(document(), "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""Recognition of RabbitMQ's files, which users of RabbitMQ may name as the configuration file."""

from __future__ import annotations

import json
import re
from typing import Final

# Settings of rabbitmq.conf that no TOML file of Leveret has: their names, or the first parts of them.
_RABBITMQ: Final = re.compile(
    r"^[ \t]*(?:(?:heartbeat|frame_max|channel_max|max_message_size|consumer_timeout|handshake_timeout|load_definitions"
    r"|listeners|tcp_listen_options|num_acceptors|ssl_options|ssl_cert_login_from|loopback_users|vm_memory_high_watermark"
    r"|disk_free_limit|default_\w+|auth_\w+|log|cluster_\w+|collect_statistics\w*|queue_(?:leader|master)_locator"
    r"|definitions|prometheus|mqtt|stomp|stream|web_\w+|raft|management\.(?:tcp|ssl|listener|cors))(?:\.[^\s=]+)?[ \t]*="
    # Leveret has these, too, but TOML needs quotes.
    r"|management\.(?:load_definitions|path_prefix)[ \t]*=[ \t]*[^\"'\s])",
    re.MULTILINE,
)
_TABLE: Final = re.compile(r"^[ \t]*\[", re.MULTILINE)
_ERLANG_COMMENT: Final = re.compile(r"^\s*%.*$", re.MULTILINE)
_DEFINITIONS: Final = ("users", "vhosts", "queues", "exchanges", "policies", "rabbit_version", "rabbitmq_version")


def is_rabbitmq_conf(text: str) -> bool:
    """Return whether a text is a rabbitmq.conf, which may be valid TOML."""
    return _RABBITMQ.search(text) is not None and _TABLE.search(text) is None


def is_erlang(text: str) -> bool:
    """Return whether a text is a list of Erlang terms, as in advanced.config, and in rabbitmq.config before 3.7."""
    terms = _ERLANG_COMMENT.sub("", text).strip()
    return terms.startswith("[") and terms.endswith(".") and terms[:-1].rstrip().endswith("]")


def foreign_format(text: str, path: str) -> str | None:
    """Return what is wrong with a file that is in a format of RabbitMQ, or JSON, instead of TOML; None if it is not."""
    if is_erlang(text):
        return (
            "the file has Erlang terms, as RabbitMQ's advanced.config; expected TOML. Set what you need of it by hand: "
            "`leveret migrate --conf` converts rabbitmq.conf only"
        )
    if is_rabbitmq_conf(text):
        return f"the file is in RabbitMQ's format; expected TOML: convert it with `leveret migrate --conf {path}`"
    if not text.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if isinstance(found, dict) and any(name in found for name in _DEFINITIONS):
        return (
            "the file has definitions, in JSON; expected TOML. Name it in 'management.load_definitions', or import it with "
            f"`leveret definitions import {path}`"
        )
    return "the file is JSON; expected TOML"

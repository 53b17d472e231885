"""`leveret streams erase`: erase personal data from sealed segments by rules."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from leveret._text import read_json
from leveret.cli.failed import Failed
from leveret.cli.options import FilePath
from leveret.cli.output import Item, StatusLine, show_json, show_table
from leveret.cli.remote import Remote, current, in_vhost_option, remote_options
from leveret.cli.stream_segments import POLL_INTERVAL, streams_of

COUNTS = ("rows", "matched", "removed", "emptied", "masked", "unread")


@click.command()
@click.argument("name")
@click.option(
    "--where",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="routing-key=PATTERN, header:NAME=TEXT, header:NAME, body:JSONPATH=TEXT or selector=SQL; repeatable, rows"
    " must match all conditions.",
)
@click.option("--remove", is_flag=True, help="Remove the matching rows; their offsets stay unused.")
@click.option("--drop-body", is_flag=True, help="Replace the bodies of the matching rows with empty ones.")
@click.option(
    "--mask",
    multiple=True,
    metavar="WHAT",
    help="Mask a JSON path into the body, header:NAME or property:NAME; repeatable.",
)
@click.option("--mask-with", default="***", show_default=True, help="The replacement for --mask.")
@click.option(
    "--rules",
    "rules_path",
    type=FilePath(path_type=Path, dir_okay=False),
    help="JSON list of rules, instead of the options above; the first rule that matches a row applies.",
)
@click.option("--seal", is_flag=True, help="Seal all current messages first, so that the rules apply to them too.")
@click.option("--dry-run", is_flag=True, help="Count the matching rows without changing them.")
@in_vhost_option
@remote_options
def erase(
    name: str,
    conditions: tuple[str, ...],
    remove: bool,
    drop_body: bool,
    mask: tuple[str, ...],
    mask_with: str,
    rules_path: Path | None,
    seal: bool,
    dry_run: bool,
    vhost: str,
) -> None:
    """Erase or mask data in sealed segments. NAME is a stream, or a super stream for all its partitions.

    The broker rewrites the segments; offsets do not change. It removes the old files after `streams.grace`, once no reader
    pins them.
    """
    rules = _rules(rules_path, conditions, remove, drop_body, mask, mask_with)
    _check(rules)
    broker = current()
    outcome: Item = {"dry_run": dry_run}
    for stream in streams_of(broker, name, vhost):
        broker.call("streams.erase", name=stream, vhost=vhost, rules=rules, dry_run=dry_run, seal=seal)
        ended = _outcome(broker, stream, vhost)
        if ended["state"] == "failed":
            raise Failed(
                f"the erasure of stream '{stream}' failed after {ended['segments']} segments:"
                f" {ended['problem']}\nThe rewritten segments are kept; run the command again to continue."
            )
        for word in (*COUNTS, "segments", "rewritten", "unsealed"):
            outcome[word] = outcome.get(word, 0) + ended.get(word, 0)
    if broker.as_json:
        show_json(outcome)
        return
    show_table([{"what": word, "rows": outcome[word]} for word in COUNTS], (("what", ""), ("rows", "rows")))
    click.echo(f"checked {outcome['segments']} segments, rewrote {outcome['rewritten']}")
    if dry_run:
        click.echo("dry run: nothing was changed")
    if outcome["unread"]:
        click.echo(f"{outcome['unread']} bodies are not JSON and were not changed")
    if outcome["unsealed"]:
        click.echo(f"{outcome['unsealed']} messages are unsealed and were not checked; use --seal to seal them first")


def _outcome(broker: Remote, name: str, vhost: str) -> Item:
    """Wait for the end of the erasure, showing its progress on a terminal. Returns its counts."""
    with StatusLine(not broker.as_json) as line:
        while True:
            outcome: Item = broker.call("streams.erasing", name=name, vhost=vhost)
            if outcome["state"] in ("done", "failed"):
                return outcome
            line.show(
                f"{outcome['state']}: {outcome['segments']} segments done, {outcome['remaining']} remaining,"
                f" {outcome.get('matched', 0)} rows matched"
            )
            time.sleep(POLL_INTERVAL)


def _rules(
    path: Path | None, conditions: tuple[str, ...], remove: bool, drop_body: bool, mask: tuple[str, ...], mask_with: str
) -> list[Item]:
    if path is not None:
        if conditions or remove or drop_body or mask:
            raise click.UsageError("--rules excludes --where, --remove, --drop-body and --mask")
        return _read(path)
    actions = [action for action, wanted in (("remove", remove), ("drop-body", drop_body), ("mask", bool(mask))) if wanted]
    if len(actions) != 1 or not conditions:
        raise click.UsageError("expected --where and one of --remove, --drop-body and --mask; or --rules")
    rule: Item = {"action": actions[0], **_conditions(conditions)}
    if mask:
        rule |= {"mask": list(mask), "mask_with": mask_with}
    return [rule]


def _read(path: Path) -> list[Item]:
    try:
        rules = read_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--rules {path}: {error}") from None
    if not isinstance(rules, list) or not rules or not all(isinstance(rule, dict) for rule in rules):
        raise click.UsageError(f"--rules {path}: expected a JSON list of objects")
    return rules


def _conditions(texts: tuple[str, ...]) -> Item:
    found: Item = {}
    for text in texts:
        what, equals, value = text.partition("=")
        kind, _, name = what.partition(":")
        if kind == "header" and name:
            found.setdefault("headers", {})[name] = value if equals else None
        elif kind == "body" and name and equals:
            found.setdefault("body", {})[name] = value
        elif what in ("routing-key", "selector") and equals and what.replace("-", "_") not in found:
            found[what.replace("-", "_")] = value
        else:
            raise click.UsageError(
                f"--where {text!r}: expected routing-key=PATTERN or selector=SQL, each once,"
                " header:NAME=TEXT, header:NAME or body:JSONPATH=TEXT"
            )
    return found


def _check(rules: list[Item]) -> None:
    """Reject invalid rules before sending them. Without pyarrow, leave the check to the broker."""
    try:
        from leveret.segments.erasure import compile_rules, decode_rules
    except ImportError:
        return
    try:
        compile_rules(decode_rules(json.dumps(rules).encode()))
    except ValueError as error:
        raise click.UsageError(str(error)) from None

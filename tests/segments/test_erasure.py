"""Erasure rules apply to rows of both protocols; rewriting and merging files preserves offsets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from leveret.broker.message import Overlay, make_address
from leveret.segments.columns import Rows, make_batch
from leveret.segments.content_encodings import MAX_DECOMPRESSED_BYTES, compress, decompress
from leveret.segments.erasure import Counts, Rule, compile_rules, decode_rules
from leveret.segments.errors import SegmentDamaged, SegmentMissing
from leveret.segments.json_paths import JsonPath
from leveret.segments.manifest import Segment
from leveret.segments.reader import StoredMessage, open_segment
from leveret.segments.rewriting import merge, rewrite
from leveret.segments.writer import SegmentWriter
from leveret.storage.records import encode_overlay
from leveret.wire.amqp0.classes import decode_transfer, encode_transfer
from leveret.wire.amqp0.dialects import QPID
from leveret.wire.amqp0.properties import decode_header, encode_header
from leveret.wire.amqp0.table_amqp09 import V0_9
from leveret.wire.amqp10 import message as amqp10
from leveret.wire.amqp10.messaging import Properties
from leveret.wire.amqp10.values import UInt, ULong

BODY = json.dumps({"customer": {"id": 4711, "email": "a@example.org"}, "items": [{"note": "x"}, {"note": "y"}]}).encode()
HEADER0 = encode_header(
    60,
    len(BODY),
    {
        "content_type": "application/json",
        "headers": {"customer": "4711", "n": 5, "x-tag": True},
        "delivery_mode": 2,
        "user_id": "alice",
        "message_id": "m",
        "priority": 3,
        "timestamp": 1_700_000_000,
    },
)
HEADER1 = (
    amqp10.encode_header(True, 3, -1, False, 0)
    + amqp10.encode_message_annotations({"x-tag": True})
    + amqp10.encode_properties(
        Properties(user_id=b"alice", content_type="application/json", message_id=ULong(7), reply_to="back")
    )
    + amqp10.encode_application_properties({"customer": "4711", "n": UInt(5)})
    + amqp10.encode_footer({"x-f": 1})
)
# Offset, format, key, header, body.
MESSAGES: list[tuple[int, int, str, bytes, bytes]] = [
    (10, 0, "orders.new", HEADER0, BODY),
    (11, 1, "orders.new", HEADER1, amqp10.encode_data(BODY)),
    (12, 1, "orders.text", HEADER1, amqp10.encode_body_value(BODY.decode())),
    (13, 0, "orders.raw", HEADER0, b"no json \xff"),
    (14, 1, "orders.list", HEADER1, amqp10.encode_sequence([1, 2])),
    (15, 0, "other", encode_header(60, 2, {}), b"{}"),
]


def rows_of(messages: list[tuple[int, int, str, bytes, bytes]]) -> Rows:
    return Rows(
        [item[0] for item in messages],
        [item[0] * 1000 for item in messages],
        [item[1] for item in messages],
        [make_address("e", item[2]) for item in messages],
        [item[3] for item in messages],
        [item[4] for item in messages],
    )


def written(directory: Path, messages: list[tuple[int, int, str, bytes, bytes]]) -> Segment:
    writer = SegmentWriter(str(directory), "events")
    writer.append(rows_of(messages))
    return writer.finish()


def erased(tmp_path: Path, *rules: Rule) -> tuple[dict[int, StoredMessage], Counts]:
    """Apply rules. Returns the remaining messages by offset, and the counts."""
    source = written(tmp_path, MESSAGES)
    with open_segment(str(tmp_path / source.path), expected=source) as reader:
        target, counts = rewrite(reader, compile_rules(list(rules)), SegmentWriter(str(tmp_path), "events"))
        _, dry = rewrite(reader, compile_rules(list(rules)), None)
    assert dry == counts
    if target is None:
        target = source
    assert (target.first, target.last) == (10, 15)
    with open_segment(str(tmp_path / target.path), expected=target) as reader:
        reader.check(target.crc32)
        return {item.offset: item for part in reader.messages() for item in part}, counts


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"routing_key": "orders.*"}, [10, 11, 12, 13, 14]),
        ({"routing_key": "#.new"}, [10, 11]),
        ({"routing_key": "#"}, "all"),
        ({"routing_key": "*"}, [15]),
        ({"routing_key": "orders.#.new.#"}, [10, 11]),
        ({"routing_key": "orders"}, []),
        ({"headers": {"customer": "4711"}}, [10, 11, 12, 13, 14]),
        ({"headers": {"n": "5", "x-tag": None}}, [10, 13]),
        ({"headers": {"customer": "47"}}, []),
        ({"body": {"$.customer.id": "4711"}}, [10, 11, 12]),
        ({"body": {"$.items[*].note": "y"}}, [10, 11, 12]),
        ({"body": {"$.items[0].note": "y"}}, []),
        ({"body": {"$.customer.id": "4711", "$.items[1].note": "z"}}, []),
        ({"selector": "customer = '4711' AND n < 6 AND m.[x-routing-key] <> 'orders.new'"}, [12, 13, 14]),
        ({"selector": "p.user_id = 0x616C696365 AND m.[x-tag] AND h.priority = 3"}, [10, 11, 12, 13, 14]),
        ({"selector": "p.creation_time = 1700000000000"}, [10, 13]),
        ({"selector": "n = 5", "routing_key": "orders.new", "body": {"$.customer.email": "a@example.org"}}, [10, 11]),
    ],
    ids=str,
)
def test_conditions(rule: dict[str, Any], expected: list[int] | str) -> None:
    [compiled] = compile_rules([Rule(action="remove", **rule)])
    batch = make_batch(rows_of(MESSAGES))
    found = [MESSAGES[row][0] for row in compiled.rows(batch, Counts())]
    assert found == ([item[0] for item in MESSAGES] if expected == "all" else expected)


def test_offsets_of_removed_rows_are_not_reused(tmp_path: Path) -> None:
    left, counts = erased(tmp_path, Rule(action="remove", routing_key="orders.new"))
    assert list(left) == [12, 13, 14, 15]
    assert (counts.rows, counts.matched, counts.removed) == (6, 2, 2)
    assert left[12].header == HEADER1 and left[12].body == MESSAGES[2][4] and left[12].time == 12_000


def test_all_rows_can_be_removed(tmp_path: Path) -> None:
    left, counts = erased(tmp_path, Rule(action="remove", routing_key="#"))
    assert left == {} and counts.removed == 6


def test_no_file_is_written_if_nothing_changes(tmp_path: Path) -> None:
    left, counts = erased(tmp_path, Rule(action="remove", routing_key="nowhere"))
    assert len(left) == 6 and counts.matched == 0
    assert len(list(tmp_path.iterdir())) == 1


def test_bodies_are_dropped(tmp_path: Path) -> None:
    left, counts = erased(tmp_path, Rule(action="drop-body", headers={"customer": None}))
    assert counts.emptied == 5 and counts.unreadable == 0
    assert left[10].body == left[13].body == b"" and left[10].header == HEADER0[:4] + bytes(8) + HEADER0[12:]
    for offset in (11, 12, 14):
        assert left[offset].body == amqp10.encode_data(b"") and left[offset].header == HEADER1
    assert left[15].body == b"{}"


def test_values_in_bodies_are_masked(tmp_path: Path) -> None:
    left, counts = erased(
        tmp_path,
        Rule(
            action="mask", routing_key="orders.#", mask_with="?", mask=("$.customer.email", "$.items[*].note", "$.nowhere")
        ),
    )
    assert (counts.matched, counts.masked, counts.unreadable) == (5, 3, 2)
    masked = {"customer": {"id": 4711, "email": "?"}, "items": [{"note": "?"}, {"note": "?"}]}
    assert json.loads(left[10].body) == masked
    assert left[10].header == HEADER0[:4] + len(left[10].body).to_bytes(8, "big") + HEADER0[12:]
    assert left[11].body[:5] == b"\x00\x53\x75\xa0" + bytes((len(left[10].body),))
    assert json.loads(left[11].body[5:]) == masked
    assert left[12].body[:4] == b"\x00\x53\x77\xa1" and json.loads(left[12].body[5:]) == masked
    assert left[13].body == MESSAGES[3][4] and left[14].body == MESSAGES[4][4]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd", "br", "bzip2", "lz4"])
def test_compressed_bodies_are_masked_and_stay_compressed(tmp_path: Path, encoding: str) -> None:
    compressed = compress(BODY, encoding)
    header1 = amqp10.encode_properties(Properties(content_encoding=encoding))
    source = written(
        tmp_path,
        [
            (1, 0, "k", encode_header(60, len(compressed), {"content_encoding": encoding}), compressed),
            (2, 1, "k", header1, amqp10.encode_data(compressed)),
            (3, 0, "k", encode_header(60, 4, {"content_encoding": encoding}), b"none"),
            (4, 0, "k", encode_header(60, len(compressed), {"content_encoding": "unheard-of"}), compressed),
        ],
    )
    rule = Rule(action="mask", body={"$.customer.id": "4711"}, mask=("$.customer.email",))
    with open_segment(str(tmp_path / source.path), expected=source) as reader:
        target, counts = rewrite(reader, compile_rules([rule]), SegmentWriter(str(tmp_path), "events"))
    assert (counts.matched, counts.masked, counts.unreadable) == (2, 2, 2)
    assert target is not None
    with open_segment(str(tmp_path / target.path), expected=target) as reader:
        left = {item.offset: item for part in reader.messages() for item in part}
    content = decompress(left[1].body, encoding)
    assert content is not None and json.loads(content)["customer"] == {"id": 4711, "email": "***"}
    assert left[1].header[4:12] == len(left[1].body).to_bytes(8, "big")
    assert left[2].body == amqp10.encode_data(left[1].body)
    assert (left[3].body, left[4].body) == (b"none", compressed)


def test_bodies_that_decompress_to_too_much_are_not_inspected() -> None:
    assert decompress(compress(bytes(MAX_DECOMPRESSED_BYTES), "gzip"), "gzip") == bytes(MAX_DECOMPRESSED_BYTES)
    for encoding in ("gzip", "deflate"):
        assert decompress(compress(bytes(MAX_DECOMPRESSED_BYTES + 1), encoding), encoding) is None


def test_contents_of_other_classes_are_masked(tmp_path: Path) -> None:
    file = encode_header(
        70, len(BODY), {"filename": "alice.json", "message_id": "m", "headers": {"customer": "4711", "n": 5}}, QPID, V0_9
    )
    stream = encode_header(80, len(BODY), {"headers": {"customer": "4711"}, "priority": 3}, QPID, V0_9)
    message = encode_transfer(
        len(BODY),
        {
            "message_id": "m",
            "user_id": "alice",
            "app_id": "shop",
            "priority": 3,
            "application_headers": {"customer": "4711"},
        },
    )
    source = written(tmp_path, [(at, 3, "k", header, BODY) for at, header in enumerate((file, stream, message), 1)])
    rule = Rule(
        action="mask",
        headers={"customer": "4711"},
        mask=("header:customer", "header:x-filename", "property:message_id", "property:user_id", "$.customer.email"),
    )
    with open_segment(str(tmp_path / source.path), expected=source) as reader:
        target, counts = rewrite(reader, compile_rules([rule]), SegmentWriter(str(tmp_path), "events"))
    assert target is not None and counts.masked == 3
    with open_segment(str(tmp_path / target.path), expected=target) as reader:
        left = {item.offset: item for part in reader.messages() for item in part}
    assert decode_header(left[1].header, QPID, V0_9) == (
        70,
        len(left[1].body),
        {"filename": "***", "message_id": "***", "headers": {"customer": "***", "n": 5}},
    )
    assert decode_header(left[2].header, QPID, V0_9)[2] == {"headers": {"customer": "***"}, "priority": 3}
    found = decode_transfer(left[3].header)
    assert (found["message_id"], found["user_id"], found["app_id"]) == ("***", "***", "shop")
    assert found["application_headers"] == {"customer": "***"}
    assert all(b"a@example.org" not in item.body and item.format == 3 for item in left.values())


def test_headers_and_properties_are_masked(tmp_path: Path) -> None:
    left, counts = erased(
        tmp_path,
        Rule(
            action="mask",
            routing_key="#",
            mask=("header:customer", "property:user_id", "property:message_id", "property:app_id"),
        ),
    )
    assert (counts.matched, counts.masked) == (6, 5)
    rows = make_batch(
        Rows(
            [10, 11, 15],
            None,
            [0, 1, 0],
            [make_address("e", "k")] * 3,
            [left[10].header, left[11].header, left[15].header],
            [BODY, amqp10.encode_data(BODY), b"{}"],
        )
    )
    first, second, third = rows.to_pylist()
    # Masked values are replaced in place or appended; everything else is unchanged.
    assert first["headers_json"] == '{"n":5,"x-tag":true,"customer":"***"}'
    assert second["headers_json"] == '{"customer":"***","n":{"$uint":5}}'
    assert [first[name] for name in ("user_id", "message_id", "app_id", "priority")] == ["***", "***", None, 3]
    assert [second[name] for name in ("user_id", "message_id", "reply_to")] == ["***", "***", "back"]
    assert second["amqp10"]["footer"] == '{"x-f":1}' and second["amqp10"]["message_annotations"] == '{"x-tag":true}'
    assert left[11].headers_at >= 0 and left[11].header[left[11].headers_at :] == amqp10.encode_footer({"x-f": 1})
    assert third["user_id"] is None


def test_headers_added_by_the_broker_are_masked_too(tmp_path: Path) -> None:
    overlay = encode_overlay(Overlay(make_address("dlx", "k"), {"who": "alice", "x-death": []}))
    writer = SegmentWriter(str(tmp_path), "events")
    writer.append(Rows([1], [1000], 0, [make_address("e", "k")], [encode_header(60, 1, {})], [b"x"], [overlay]))
    source = writer.finish()
    with open_segment(str(tmp_path / source.path)) as reader:
        rule = Rule(action="mask", headers={"who": "alice"}, mask=("header:who",))
        target, _ = rewrite(reader, compile_rules([rule]), SegmentWriter(str(tmp_path), "events"))
    assert target is not None
    with open_segment(str(tmp_path / target.path)) as reader:
        [batch] = reader.read()
        assert dict(batch.column("headers").to_pylist()[0])["who"] == "***"
        assert batch.column("exchange").to_pylist() == ["dlx"]


def test_the_first_matching_rule_applies(tmp_path: Path) -> None:
    left, counts = erased(
        tmp_path, Rule(action="drop-body", routing_key="orders.new"), Rule(action="remove", routing_key="orders.#")
    )
    assert list(left) == [10, 11, 15] and (counts.emptied, counts.removed, counts.matched) == (2, 3, 5)
    assert left[10].body == b""


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"action": "remove"}, "rule 1: expected a condition"),
        ({"action": "mask", "routing_key": "#"}, "mask lists the values that the action 'mask' replaces"),
        ({"action": "remove", "routing_key": "#", "mask": ["$.a"]}, "set both or neither"),
        ({"action": "mask", "routing_key": "#", "mask": ["a.b"]}, r"JSON path 'a.b': expected '\$'"),
        ({"action": "mask", "routing_key": "#", "mask": ["property:colour"]}, "property 'colour' cannot be masked"),
        ({"action": "remove", "selector": "a = = 1"}, "rule 1: selector: position 4"),
        ({"action": "burn", "routing_key": "#"}, "rules: Invalid enum value"),
        ({"action": "remove", "colour": 1}, "unknown field"),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value),
)
def test_an_invalid_rule_is_named(rule: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        compile_rules(decode_rules(json.dumps([rule]).encode()))


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("$", 1),
        ("$.a", 1),
        ("$.a.b", 1),
        ("$['odd name']", 1),
        ('$["odd name"][1]', 1),
        ("$['odd name'][*]", 2),
        ("$.*", 2),
        ("$.a[0]", 0),
        ("$['odd name'].b", 0),
        ("$['odd name'][2]", 0),
    ],
)
def test_json_paths(path: str, values: int) -> None:
    document: Any = {"a": {"b": 1}, "odd name": [1, 2]}
    assert len(list(JsonPath(path).values(document))) == values
    changed, count = JsonPath(path).replace(document, "x")
    assert count == values and list(JsonPath(path).values(changed)) == ["x"] * values


@pytest.mark.parametrize("path", ["", "a", "$a", "$.", "$[", "$[a]", "$..a", "$.a["])
def test_invalid_json_paths(path: str) -> None:
    with pytest.raises(ValueError, match="JSON path"):
        JsonPath(path)


def test_adjacent_segments_are_merged(tmp_path: Path) -> None:
    first, second = written(tmp_path, MESSAGES[:2]), written(tmp_path, MESSAGES[3:])
    with open_segment(str(tmp_path / first.path)) as one, open_segment(str(tmp_path / second.path)) as other:
        merged = merge([one, other], SegmentWriter(str(tmp_path), "events"))
    assert (merged.first, merged.last, merged.count, merged.groups) == (10, 15, 5, (5,))
    assert merged.body_bytes == first.body_bytes + second.body_bytes
    with open_segment(str(tmp_path / merged.path), expected=merged) as reader:
        found = [(item.offset, item.header, item.body) for part in reader.messages() for item in part]
    assert found == [(item[0], item[3], item[4]) for item in MESSAGES[:2] + MESSAGES[3:]]


def test_a_source_that_fails_leaves_no_file(tmp_path: Path) -> None:
    source = written(tmp_path, MESSAGES)
    path = tmp_path / source.path
    with open_segment(str(path)) as reader:
        with open(path, "r+b") as file:
            file.write(bytes(path.stat().st_size))
        with pytest.raises((SegmentDamaged, SegmentMissing)):
            merge([reader], SegmentWriter(str(tmp_path), "events"))
        with pytest.raises((SegmentDamaged, SegmentMissing)):
            rewrite(reader, compile_rules([Rule(action="remove", routing_key="#")]), SegmentWriter(str(tmp_path), "events"))
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]

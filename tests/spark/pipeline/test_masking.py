"""Rules mask only the data that they match."""

from __future__ import annotations

import hashlib
import hmac
import json

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from leveret.spark.pipeline import scrubbed
from leveret.spark.pipeline.kinds.masking import BodyMasker, HeadersMasker, Rule
from tests.spark.pipeline.support import messages

KEY = b"0123456789abcdef"


def hashed(text: str) -> str:
    return hmac.new(KEY, text.encode(), hashlib.sha256).hexdigest()[:32]


@pytest.mark.parametrize(
    ("rule", "body", "masked"),
    [
        (Rule(field="a.b"), {"a": {"b": "Jo 12"}, "b": "x"}, {"a": {"b": "** **"}, "b": "x"}),
        (Rule(field="a.b", action="hash"), {"a": {"b": "Jo"}}, {"a": {"b": hashed("Jo")}}),
        (Rule(field="n", action="hash"), {"n": 12}, {"n": hashed("12")}),
        (Rule(field="a", action="drop"), {"a": 1, "b": 2}, {"b": 2}),
        (Rule(field="a", action="replace", replacement="?"), {"a": [1]}, {"a": "?"}),
        (
            Rule(field="list[].name"),
            {"list": [{"name": "ab"}, {"id": 1}, {"name": "c"}]},
            {"list": [{"name": "**"}, {"id": 1}, {"name": "*"}]},
        ),
        (Rule(field="list[]", action="drop"), {"list": [1, 2]}, {"list": []}),
        (Rule(field="*.name"), {"x": {"name": "ab"}, "y": 3}, {"x": {"name": "**"}, "y": 3}),
        (Rule(field="a"), {"a": None}, {"a": None}),
        (Rule(field="a.b"), {"a": "text"}, {"a": "text"}),
        (Rule(pattern=r"\d{4,}"), {"text": "card 123456"}, {"text": "card ******"}),
        (Rule(pattern="secret", action="drop"), {"text": "a secret"}, {"text": "a "}),
    ],
    ids=lambda value: value.field or value.pattern if isinstance(value, Rule) else "",
)
def test_a_rule(rule: Rule, body: object, masked: object) -> None:
    assert json.loads(BodyMasker([rule], KEY)(json.dumps(body).encode())) == masked


def test_a_body_that_no_rule_matches_is_unchanged() -> None:
    body = b'{ "b" : 1.0,  "c":"\\u00e9" }'
    assert BodyMasker([Rule(field="a"), Rule(pattern="zzz")], KEY)(body) == body
    binary = bytes(range(256))
    assert BodyMasker([Rule(pattern="ABC")], KEY)(binary) == binary.replace(b"ABC", b"***")


def test_all_rules_apply_to_a_body() -> None:
    rules = [Rule(field="a"), Rule(field="b"), Rule(pattern="@home")]
    masked = json.loads(BodyMasker(rules, KEY)(b'{"a": "x", "b": "y", "c": "me@home"}'))
    assert masked == {"a": "*", "b": "*", "c": "me@****"}


@pytest.mark.parametrize("body", [b'{"a": {"b": "Jo"}, "a": 1}', b'{"a": [{"b": "Jo", "b": null}]}'])
def test_duplicate_fields_are_rejected(body: bytes) -> None:
    with pytest.raises(ValueError, match="the body has duplicate fields"):
        BodyMasker([Rule(field="a.b")], KEY)(body)


def test_headers() -> None:
    masker = HeadersMasker([Rule(header="email"), Rule(header="secret", action="drop")], KEY)
    assert json.loads(masker('{"email":"a@b","secret":1,"n":{"$int":3}}')) == {"email": "*@*", "n": {"$int": 3}}


def test_messages_in_spark(spark: SparkSession) -> None:
    rules = [
        Rule(field="email", action="hash"),
        Rule(header="who"),
        Rule(property="user_id", action="drop"),
        Rule(header="zip", action="drop"),
    ]
    source = messages(
        spark,
        [b'{"email": "a@b"}', b"no json"],
        user_id="jo",
        headers=F.create_map(F.lit("who"), F.lit("Jo"), F.lit("zip"), F.lit("1"), F.lit("n"), F.lit("2")),
        headers_json='{"who":"Jo","zip":1,"n":2}',
    )
    good, bad = scrubbed(source, rules, KEY).orderBy("offset").collect()
    assert json.loads(good["body"]) == {"email": hashed("a@b")}
    assert good["headers"] == {"who": "**", "n": "2"}
    assert json.loads(good["headers_json"]) == {"who": "**", "n": 2}
    assert good["user_id"] is None
    assert good["decode_error"] is None
    assert bad["decode_error"].startswith("not JSON, but a rule names a field")
    assert bad["body"] is None


def test_compressed_bodies_are_rejected(spark: SparkSession) -> None:
    source = messages(spark, [b"\x1f\x8b", b"x"], content_encoding=F.when(F.col("offset") == 0, "GZIP"))
    for rules, expected in (
        ([Rule(pattern="x")], ["content-encoding gzip is not supported", None]),
        ([Rule(property="user_id")], [None, None]),
    ):
        assert [row["decode_error"] for row in scrubbed(source, rules).orderBy("offset").collect()] == expected

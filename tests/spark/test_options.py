"""Parsing of options, and errors for invalid ones."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from leveret.spark.connection import PASSWORD_VARIABLE, ControlClient, endpoint_of
from leveret.spark.errors import OptionError
from leveret.spark.kafka_options import KAFKA_OPTIONS
from leveret.spark.options import BY_NAME, OPTIONS, read_options
from leveret.spark.sink.schema import SchemaError, check_schema
from leveret.spark.values import EARLIEST, LATEST

SECRET = "s3cr3t/pass"
URL = "amqp://guest:s3cr3t%2Fpass@127.0.0.1:1/"


def test_defaults() -> None:
    settings = read_options({"stream": "orders"})
    assert settings.source() == ("stream", "orders")
    assert settings.protocol == "0-9-1"
    assert settings.ending_offsets == "latest"
    assert settings.max_trigger_delay == 900
    assert settings.fail_on_data_loss is True
    assert settings.starting_offsets is None
    assert settings.given == {"stream"}


def test_option_names_are_case_insensitive() -> None:
    settings = read_options({"superstream": "orders", "STARTINGOFFSETS": "EARLIEST", "tls.cafile": "/ca.pem"})
    assert settings.source() == ("superStream", "orders")
    assert settings.starting_offsets == "earliest"
    assert settings.tls_ca_file == "/ca.pem"


def test_values_of_every_kind() -> None:
    settings = read_options(
        {
            "stream": "s",
            "startingOffsets": '{"s": 3, "t": "earliest", "u": -1}',
            "maxBytesPerTrigger": "64m",
            "maxTriggerDelay": "500ms",
            "startingTimestamp": "2026-05-01T12:00:00Z",
            "endingTimestamp": '{"s": 1777636800000, "t": "2026-05-01T12:00:00Z"}',
            "columns": "offset, body",
            "failOnDataLoss": "FALSE",
            "minPartitions": "4",
        }
    )
    assert settings.starting_offsets == {"s": 3, "t": EARLIEST, "u": LATEST}
    assert settings.max_bytes_per_trigger == 64 << 20
    assert settings.max_trigger_delay == 0.5
    assert settings.starting_timestamp == 1_777_636_800_000
    assert settings.ending_timestamp == {"s": 1_777_636_800_000, "t": 1_777_636_800_000}
    assert settings.columns == ("offset", "body")
    assert settings.fail_on_data_loss is False
    assert settings.min_partitions == 4


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("protocol", "0-8", "0-9-1 or 1.0"),
        ("mode", "sideways", "stream, lease, spool or browse"),
        ("startingOffsets", "newest", "earliest or latest"),
        ("startingOffsets", '{"s": -3}', "the value of 's' is not an offset"),
        ("startingOffsets", '{"s": {"0": 3}}', "'s' has partitions, as in Kafka; expected its streams, such as 's-0'"),
        ("startingOffsets", "[1]", "offsets by stream in JSON"),
        ("endingOffsets", "earliest", "expected latest, or offsets"),
        ("startingTimestamp", "yesterday", "milliseconds of Unix time"),
        ("startingTimestamp", "1777636800", "looks like seconds; did you mean 1777636800000?"),
        ("endingTimestamp", "1777636800000000", "looks like microseconds; did you mean 1777636800000?"),
        ("startingTimestamp", '{"s": 1777636800}', "looks like seconds"),
        ("startingTimestamp", "{}", "times by stream in JSON"),
        ("startingOffsetsByTimestampStrategy", "earliest", "latest or error"),
        ("maxMessagesPerTrigger", "0", "an integer of at least 1"),
        ("maxBytesPerTrigger", "much", "bytes above 0"),
        ("maxTriggerDelay", "soon", "a time such as 500ms"),
        ("failOnDataLoss", "perhaps", "true or false"),
        ("streamPattern", "(", "a regular expression"),
        ("columns", " , ", "comma-separated names"),
        ("history", "files", "auto, segments or amqp"),
        ("stream", "", "a text that is not empty"),
        # Values that the broker would refuse.
        ("maxBytesPerTrigger", "4194305t", "at most 4194304t"),
        ("leaseTimeout", "1158d", "at most 1157d"),
        ("leaseTimeout", "0", "a time above 0"),
        ("consumerName", "x" * 256, "a text of 1 to 255 characters"),
        ("lease", "x" * 256, "a text of 1 to 255 characters"),
        ("sinkName", "x" * 201, "a text of 1 to 200 characters"),
        ("txnAppId", "x" * 256, "a text of 1 to 255 characters"),
        ("txnVersion", str(2**62 + 1), "an integer from 0 to 4611686018427387904"),
        ("maxRate", "-1", "messages per second"),
        ("maxRate", "0", "messages per second, above 0"),
    ],
)
def test_an_invalid_value_is_named(name: str, value: str, expected: str) -> None:
    with pytest.raises(OptionError) as raised:
        read_options({name: value})
    assert f"option {name}:" in str(raised.value)
    assert expected in str(raised.value)


def test_an_unknown_option_gets_suggestions() -> None:
    with pytest.raises(OptionError, match=r"unknown option 'startingOffset'; did you mean startingOffsets"):
        read_options({"stream": "s", "startingOffset": "latest"})
    with pytest.raises(OptionError, match=r"docs/spark-options\.md lists all options"):
        read_options({"xyzzy": "1"})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("subscribe", "set streams, which takes"),
        ("kafka.bootstrap.servers", "set url to amqp://"),
        ("STARTINGOFFSETSBYTIMESTAMP", "set startingTimestamp"),
        ("kafka.ssl.truststore.location", "set tls.caFile"),
        ("kafka.max.poll.records", "there is no Kafka client to configure"),
    ],
)
def test_an_option_of_kafka_names_its_replacement(name: str, hint: str) -> None:
    with pytest.raises(OptionError, match=f"option '{name}' is Kafka's; .*{hint}"):
        read_options({name: "x"})


def test_options_that_kafka_has_as_well_are_accepted() -> None:
    for option in KAFKA_OPTIONS:
        assert (option.instead == "keep it") == (option.name.lower() in BY_NAME), option.name


def test_columns_of_kafka_get_a_hint() -> None:
    settings = read_options({"routingKey": "q"})
    with pytest.raises(SchemaError, match="rename value, as Kafka's sink calls it, to body"):
        check_schema(StructType([StructField("value", StringType())]), settings)
    rows = StructType([StructField("body", StringType()), StructField("key", StringType())])
    with pytest.raises(SchemaError, match=r"does not accept the column key; did you mean routing_key\?"):
        check_schema(rows, settings)


@pytest.mark.parametrize("options", [{}, {"queue": "q", "stream": "s"}], ids=["none", "two"])
def test_exactly_one_source(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"exactly one of the options queue, stream, superStream, streams, streamPattern"):
        read_options(options).source()


def test_an_option_of_another_mode() -> None:
    with pytest.raises(OptionError, match=r"option spoolDir: not valid in mode stream, only in mode spool"):
        read_options({"stream": "s", "spoolDir": "/tmp"}).check_mode("stream")
    # A table for reading and writing has options of both.
    read_options({"stream": "s", "exchange": "e", "routingKey": "k"}).check_mode("stream")


def test_the_option_table_is_consistent() -> None:
    assert len(BY_NAME) == len(OPTIONS)
    for option in OPTIONS:
        assert option.meaning.endswith(".")
        assert option.modes


def test_nothing_shows_the_password() -> None:
    settings = read_options({"url": URL, "stream": "s"})
    endpoint = endpoint_of(settings)
    control = ControlClient(endpoint)
    for shown in (repr(settings), str(settings), repr(endpoint), str(endpoint), repr(control), repr(endpoint.parameters())):
        assert "s3cr3t" not in shown
    assert endpoint.parameters().password == SECRET
    assert pickle.loads(pickle.dumps(control)).endpoint.parameters().password == SECRET


def test_the_error_for_an_invalid_url_hides_the_password() -> None:
    for url in ("amqp://guest:s3cr3t@host:port/", "http://guest:s3cr3t@host", "amqp://guest:s3cr3t@host:1/?x=y"):
        with pytest.raises(OptionError, match="option url: ") as raised:
            endpoint_of(read_options({"url": url, "stream": "s"}))
        assert "s3cr3t" not in str(raised.value)


def test_the_password_comes_from_a_file_or_the_environment(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    file = f"{tmp_path}/password"
    with open(file, "w", encoding="utf-8") as out:
        out.write(SECRET + "\n")
    endpoint = endpoint_of(read_options({"url": "amqp://guest@h", "stream": "s", "passwordFile": file}))
    assert endpoint.parameters().password == SECRET
    assert SECRET.encode() not in pickle.dumps(endpoint)
    monkeypatch.setenv(PASSWORD_VARIABLE, "from-environment")
    assert endpoint_of(read_options({"url": "amqp://guest@h", "stream": "s"})).parameters().password == "from-environment"
    assert endpoint_of(read_options({"url": "amqp://g:own@h", "stream": "s"})).parameters().password == "own"
    with pytest.raises(OptionError, match=r"option passwordFile: '/nowhere' cannot be read"):
        endpoint_of(read_options({"url": "amqp://guest@h", "stream": "s", "passwordFile": "/nowhere"}))


def test_hosts_have_the_rest_of_the_url() -> None:
    options = {"url": "amqps://u:s3cr3t@h:1/v", "stream": "s", "hosts": "other, [::1]:7, third:8"}
    endpoint = pickle.loads(pickle.dumps(endpoint_of(read_options(options))))
    nodes = endpoint.nodes("name")
    assert [(node.host, node.port) for node in nodes] == [("h", 1), ("other", 5671), ("::1", 7), ("third", 8)]
    assert {(node.user, node.password, node.vhost, node.uses_tls, node.name) for node in nodes} == {
        ("u", "s3cr3t", "v", True, "name")
    }
    for hosts in ("other,third:port", "other,u:s3cr3t@third", "other,amqp://third"):
        with pytest.raises(OptionError, match="option hosts: address 2 is invalid; expected host or host:port") as raised:
            endpoint_of(read_options({"url": URL, "stream": "s", "hosts": hosts}))
        assert "s3cr3t" not in str(raised.value)


def test_tls_options() -> None:
    endpoint = endpoint_of(
        read_options(
            {"url": "amqps://h", "stream": "s", "tls.caFile": "/ca.pem", "tls.serverName": "broker", "tls.verify": "true"}
        )
    )
    parameters = endpoint.parameters()
    assert (parameters.cafile, parameters.server_name, parameters.verify) == ("/ca.pem", "broker", True)
    assert str(endpoint) == "amqps://guest@h:5671/%2F"
    with pytest.raises(OptionError, match="options cafile without TLS; expected amqps:"):
        endpoint_of(read_options({"url": "amqp://h", "stream": "s", "tls.caFile": "/ca.pem"}))

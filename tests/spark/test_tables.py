"""Streams as tables of the session catalog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pyspark_amqp
from leveret import sync
from leveret.spark.errors import OptionError
from leveret.spark.options import own_options, read_options
from tests.spark.support import TIMEOUT, declare_stream, declare_super_stream, numbers, publish
from tests.support.broker import LeveretProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def database(spark: SparkSession, name: str) -> Iterator[str]:
    """Return the name of a database that does not exist, and drop it afterwards."""
    database = name.replace("-", "_")
    yield database
    spark.sql(f"DROP DATABASE IF EXISTS {database} CASCADE")


def values(spark: SparkSession, table: str) -> list[str]:
    rows = spark.table(table).orderBy("partition", "offset").selectExpr("CAST(body AS STRING) AS body").collect()
    return [row.body for row in rows]


def test_a_table_with_options(
    spark: SparkSession, own_password: LeveretProcess, name: str, database: str, tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text(own_password.password)
    with sync.connect(own_password.url()) as connection:
        declare_stream(connection, name)
        publish(connection, name, ["a", "b"])
    pyspark_amqp.register(spark)
    spark.sql(f"CREATE DATABASE {database}")
    url = own_password.url().replace(f":{own_password.password}@", "@")
    create = f"CREATE TABLE {database}.orders USING amqp OPTIONS (url '{{}}', stream '{name}', passwordFile '{password}')"
    with pytest.raises(Exception, match="option url: has a password, which users of the catalog could read"):
        spark.sql(create.format(own_password.url()))
    spark.sql(create.format(url) + " COMMENT 'orders of the shop' TBLPROPERTIES ('owner.team' = 'sales')")
    tables = spark.sql(f"SHOW TABLES IN {database}").where("NOT isTemporary").collect()
    assert [row.tableName for row in tables] == ["orders"]
    assert values(spark, f"{database}.orders") == ["a", "b"]
    late = spark.read.option("startingOffsets", "latest").table(f"{database}.orders")
    assert late.count() == 0
    query = (
        spark.readStream.option("startingOffsets", "earliest")
        .table(f"{database}.orders")
        .writeStream.format("memory")
        .queryName(database)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(TIMEOUT)
    assert spark.table(database).count() == 2
    with pytest.raises(Exception, match="Spark does not pass the options of this table to INSERT INTO"):
        spark.sql(f"INSERT INTO {database}.orders (body) VALUES (CAST('c' AS BINARY))")


def test_tables_of_all_streams(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, database: str
) -> None:
    declare_stream(connection, name)
    declare_stream(connection, f"{name}-copy")
    declare_super_stream(connection, f"{name}.super", 2)
    publish(connection, name, numbers(0, 2))
    pyspark_amqp.register(spark)
    options = {"database": database, "streamPattern": f"{name}.*", "url": broker.url()}
    table = f"{database}.{database}"
    expected = {table: name, f"{table}_copy": f"{name}-copy", f"{table}_super": f"{name}.super"}
    assert pyspark_amqp.create_tables(spark, **options) == expected
    assert values(spark, table) == numbers(0, 2)
    assert spark.read.table(table).where("offset = 1").count() == 1
    spark.sql(f"INSERT INTO {table} (body) VALUES (CAST('2' AS BINARY))")
    # Rows of another table with the same columns go to this one.
    spark.sql(f"INSERT INTO {table}_copy SELECT * FROM {table}")
    spark.sql(f"INSERT INTO {table}_super (body, routing_key) SELECT body, CAST(offset AS STRING) FROM {table}")
    for written in (table, f"{table}_copy", f"{table}_super"):
        assert sorted(values(spark, written)) == numbers(0, 3)
    assert broker.password not in str(spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect())
    # Another call adds tables.
    declare_stream(connection, f"{name}-late")
    assert set(pyspark_amqp.create_tables(spark, **options)) == {*expected, f"{table}_late"}
    declare_stream(connection, f"{name}_late")
    with pytest.raises(OptionError, match=f"'{name}-late' and '{name}_late' have the same table name"):
        pyspark_amqp.create_tables(spark, **options)


def test_the_options_of_a_table_must_be_known() -> None:
    table = {"option.stream": "s", "stream": "s", "path": "/warehouse/t", "owner": "root", "team": "sales"}
    assert own_options(table) == {"stream": "s"}
    with pytest.raises(OptionError, match="unknown option 'streem'"):
        read_options(own_options({"option.streem": "s"}))
    with pytest.raises(OptionError, match="unknown option 'path'"):
        read_options(own_options({"path": "orders"}))


def test_create_tables_sets_the_source(spark: SparkSession) -> None:
    with pytest.raises(OptionError, match="option stream: not valid in create_tables"):
        pyspark_amqp.create_tables(spark, stream="orders")

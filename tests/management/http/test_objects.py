"""Objects of the HTTP API: their keys, their types, and what writes do to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

import pika
import pytest

from leveret import sync
from leveret.broker.exchanges.registry import TYPES
from tests.management.http.client import HttpBroker, send
from tests.management.http.scrapes import metrics_port
from tests.support.polling import wait_until

QUEUE = """
    arguments auto_delete consumer_capacity consumer_details consumer_utilisation consumers deliveries durable
    effective_policy_definition exclusive exclusive_consumer_tag garbage_collection head_message_timestamp idle_since
    incoming memory message_bytes message_bytes_paged_out message_bytes_persistent message_bytes_ram message_bytes_ready
    message_bytes_unacknowledged message_stats messages messages_details messages_paged_out messages_persistent messages_ram
    messages_ready messages_ready_details messages_ready_ram messages_unacknowledged messages_unacknowledged_details
    messages_unacknowledged_ram name node operator_policy policy recoverable_slaves reductions reductions_details
    single_active_consumer_tag state type vhost
"""
EXCHANGE = """
    arguments auto_delete durable incoming internal message_stats name outgoing policy type user_who_performed_action vhost
"""
BINDING = "source vhost destination destination_type routing_key arguments properties_key"
CONNECTION = """
    auth_mechanism channel_max channels client_properties connected_at container_id frame_max host port peer_host
    peer_port name user_provided_name node protocol recv_oct recv_oct_details recv_cnt recv_cnt_details send_oct
    send_oct_details send_cnt
    send_cnt_details send_pend ssl ssl_protocol ssl_cipher ssl_hash ssl_key_exchange peer_cert_subject peer_cert_issuer
    peer_cert_validity state timeout type user vhost user_who_performed_action websocket_path
"""
CHANNEL = """
    name number connection_details consumer_count prefetch_count global_prefetch_count acks_uncommitted
    messages_unacknowledged messages_unconfirmed messages_uncommitted confirm transactional state user vhost message_stats
    consumer_details deliveries publishes
"""
CONSUMER = """
    consumer_tag ack_required active activity_status arguments exclusive prefetch_count queue channel_details
"""
OVERVIEW = """
    management_version rabbitmq_version product_name product_version erlang_version cluster_name node exchange_types
    listeners contexts rates_mode sample_retention_policies object_totals queue_totals message_stats churn_rates
    statistics_db_event_queue disable_stats enable_queue_totals default_queue_type cluster_tags node_tags
"""
NODE = """
    name running type uptime mem_used mem_limit mem_alarm disk_free disk_free_limit disk_free_alarm fd_used fd_total
    sockets_used sockets_total proc_used proc_total run_queue processors os_pid partitions rates_mode applications
    auth_mechanisms exchange_types enabled_plugins contexts config_files log_files db_dir cluster_links gc_num
    gc_num_details context_switches context_switches_details io_read_count io_read_count_details msg_store_read_count
    msg_store_read_count_details queue_index_read_count mnesia_ram_tx_count being_drained maintenance
"""
VHOST = """
    name description tags default_queue_type metadata tracing cluster_state messages messages_details messages_ready
    messages_unacknowledged message_stats recv_oct send_oct protected_from_deletion
"""
MESSAGE_STATS = """
    ack confirm deliver deliver_get deliver_no_ack drop_unroutable get get_empty get_no_ack publish redeliver
    return_unroutable disk_reads disk_writes
"""


def check_keys(found: dict[str, Any], keys: str) -> None:
    missing = set(keys.split()) - found.keys()
    assert not missing, missing


def check_statistics(found: dict[str, Any], names: str) -> None:
    for name in names.split():
        assert isinstance(found[name], int), name
        assert isinstance(found[f"{name}_details"]["rate"], float), name


def test_overview(api: HttpBroker) -> None:
    found = api.get("/overview")
    check_keys(found, OVERVIEW)
    check_statistics(found["message_stats"], MESSAGE_STATS)
    check_statistics(found["queue_totals"], "messages messages_ready messages_unacknowledged")
    check_statistics(
        found["churn_rates"], "connection_created connection_closed channel_created channel_closed queue_declared"
    )
    assert found["product_name"] == "Leveret"
    assert found["rabbitmq_version"] == found["management_version"] == api.get("/version")
    assert found["node"].startswith("rabbit@")
    assert {listener["protocol"] for listener in found["listeners"]} == {"amqp", "http", "http/prometheus"}
    assert {listener["port"] for listener in found["listeners"]} == {
        api.port,
        api.process.port,
        metrics_port(api.process),
    }
    assert set(found["object_totals"]) == {"channels", "connections", "consumers", "exchanges", "queues"}
    limited = api.get("/overview", user="manager")
    check_keys(limited, OVERVIEW)
    assert limited["listeners"] == []
    assert limited["object_totals"]["exchanges"] < found["object_totals"]["exchanges"]


def test_exchange_types(api: HttpBroker) -> None:
    assert {found["name"] for found in api.get("/overview")["exchange_types"]} == set(TYPES)


def test_node(api: HttpBroker) -> None:
    (found,) = api.get("/nodes")
    check_keys(found, NODE)
    assert found["os_pid"] == str(api.process.pid)
    assert 0 < found["mem_used"] < found["mem_limit"]
    assert 0 < found["fd_used"] < found["fd_total"]
    assert found["running"] is True
    assert api.get(f"/nodes/{found['name']}")["name"] == found["name"]
    memory = api.get(f"/nodes/{found['name']}?memory=true")["memory"]
    assert memory["total"]["rss"] == sum(memory[name] for name in ("queue_procs", "other_system", "connection_other"))
    assert api.get(f"/nodes/{found['name']}/memory")["memory"]["strategy"] == "rss"


def test_connections_to_a_deleted_vhost_are_closed(api: HttpBroker) -> None:
    assert api("PUT", "/vhosts/closing").status == 201
    assert api("PUT", "/users/closer", {"password": "closer", "tags": ""}).status == 201
    for vhost in ("closing", "%2F"):
        permissions = {"configure": "", "write": "", "read": ""}
        assert api("PUT", f"/permissions/{vhost}/closer", permissions).status == 201
    urls = [api.process.url(user="closer", password="closer", vhost=vhost) for vhost in ("closing", "/")]
    closed, other = (pika.BlockingConnection(pika.URLParameters(url)) for url in urls)
    assert api("DELETE", "/vhosts/closing").status == 204
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="vhost 'closing' was deleted") as error:
        closed.channel()
    assert error.value.reply_code == 320
    assert other.channel().is_open
    other.close()
    assert api("DELETE", "/users/closer").status == 204


def test_names(api: HttpBroker) -> None:
    name = api.get("/cluster-name")["name"]
    assert name == api.get("/overview")["cluster_name"]
    assert api("PUT", "/cluster-name", {"name": name}).status == 204
    assert name == api.get("/overview")["node"] == api.get("/definitions")["original_cluster_name"]
    connection = pika.BlockingConnection(pika.URLParameters(api.process.url()))
    assert connection._impl.server_properties["cluster_name"] in (name, name.encode())
    connection.close()
    for path in ("/deprecated-features/used", "/shovels", "/federation-links/%2F"):
        assert api.get(path) == [], path
    assert api("GET", "/auth", user=None).json == {"oauth_enabled": False}


def test_what_the_console_of_rabbitmq_reads(api: HttpBroker) -> None:
    assert api.get("/extensions") == [{"javascript": "dispatcher.js"}]  # has the pages
    flags = api.get("/feature-flags")
    assert {"quorum_queue", "stream_queue", "virtual_host_metadata"} <= {flag["name"] for flag in flags}
    for flag in flags:
        assert flag.keys() == {"name", "desc", "doc_url", "state", "stability", "provided_by"}
        assert flag["state"] == "enabled"
        assert api("PUT", f"/feature-flags/{flag['name']}/enable", {}).status == 204
    assert api("PUT", "/feature-flags/all/enable", {}).status == 204
    reply = api("PUT", "/feature-flags/missing/enable", {})
    assert (reply.status, "unknown feature flag 'missing'" in reply.json["reason"]) == (400, True)


@pytest.mark.parametrize(
    ("path", "target"),
    [("/api", "/api/index.html"), ("/api/", "/api/index.html"), ("/cli", "/cli/index.html"), ("/cli/", "/cli/index.html")],
)
def test_redirects(api: HttpBroker, path: str, target: str) -> None:
    reply = send(api.port, "GET", path)
    assert (reply.status, reply.headers["location"]) == (301, target)
    while reply.status == 301:
        reply = send(api.port, "GET", reply.headers["location"])
    assert (reply.status, reply.headers["content-type"].startswith("text/html")) == (200, True)
    assert send(api.port, "POST", path).status == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/exchanges/%2F/amq.fanout/publish", {"routing_key": None}, 200),
        ("POST", "/exchanges/%2F/amq.fanout/publish", {"properties": None}, 200),
        ("POST", "/exchanges/%2F/amq.fanout/publish", {"properties": {"type": None, "headers": None}}, 200),
        ("POST", "/exchanges/%2F/amq.fanout/publish", {"payload": None}, 400),
        ("POST", "/exchanges/%2F/amq.fanout/publish", {"payload_encoding": None}, 400),
        ("POST", "/leveret/exchanges/%2F/amq.fanout/destinations", {"routing_key": None, "properties": None}, 200),
        ("POST", "/bindings/%2F/e/amq.topic/e/amq.fanout", {"routing_key": None, "arguments": None}, 201),
        ("PUT", "/queues/%2F/nulls", {"durable": None, "auto_delete": None, "arguments": None}, 201),
        ("PUT", "/exchanges/%2F/nulls", {"type": "topic", "durable": None, "internal": None, "arguments": None}, 201),
        ("PUT", "/exchanges/%2F/nulls-without-type", {"type": None}, 201),
        ("PUT", "/vhosts/nulls", {"description": None, "tags": None, "tracing": None}, 201),
        ("PUT", "/policies/%2F/nulls", {"pattern": "^n", "definition": {"max-length": 1}, "priority": None}, 201),
        ("PUT", "/policies/%2F/nulls", {"pattern": None, "definition": {"max-length": 1}}, 400),
        ("PUT", "/permissions/%2F/guest", {"configure": None, "write": ".*", "read": ".*"}, 400),
        ("PUT", "/users/nulls", {"password": None, "tags": ""}, 201),
        ("PUT", "/users/nulls", {"password": "x", "tags": None}, 400),
    ],
)  # fmt: skip
def test_keys_that_are_null(api: HttpBroker, method: str, path: str, body: dict[str, Any], status: int) -> None:
    """Null stands for a missing key; a null routing key is empty, as in RabbitMQ."""
    if path.endswith("/publish"):
        body = {"properties": {}, "routing_key": "", "payload": "x", "payload_encoding": "string"} | body
    reply = api(method, path, body)
    assert reply.status == status, reply.content
    if status == 201:
        api("DELETE", f"{path}/~" if method == "POST" else path)


def test_an_empty_password_is_refused(api: HttpBroker) -> None:
    reply = api("PUT", "/users/empty", {"password": "", "tags": ""})
    assert (reply.status, "the password is empty" in reply.json["reason"]) == (400, True)
    assert api("GET", "/users/empty").status == 404


def test_a_queue(api: HttpBroker) -> None:
    path = "/queues/%2F/objects"
    arguments = {"x-max-length": 10, "x-dead-letter-exchange": "amq.fanout"}
    assert api("PUT", path, {"durable": True, "arguments": arguments}).status == 201
    found = api.get(path)  # complete at once
    check_keys(found, QUEUE)
    check_statistics(found, "messages messages_ready messages_unacknowledged reductions")
    check_statistics(found["message_stats"], MESSAGE_STATS)
    assert found["arguments"] == arguments
    assert (found["durable"], found["exclusive"], found["auto_delete"]) == (True, False, False)
    assert (found["type"], found["state"], found["node"]) == ("classic", "running", api.get("/overview")["node"])
    (listed,) = [row for row in api.get("/queues/%2F") if row["name"] == "objects"]
    assert listed == {key: found[key] for key in found if key not in ("consumer_details", "deliveries", "incoming")}
    assert api("PUT", path, {"durable": "true", "arguments": arguments}).status == 204
    reply = api("PUT", path, {"durable": False, "arguments": arguments})
    assert reply.status == 400
    text = "inequivalent arg 'durable' for queue 'objects' in vhost '/': received 'false' but current is 'true'"
    assert reply.json == {"error": "bad_request", "reason": text}
    assert api("DELETE", path).status == 204
    assert api("DELETE", path).status == 404
    assert "objects" not in [row["name"] for row in api.get("/queues")]  # a list is never behind a write


def test_conditions_of_deletes(api: HttpBroker) -> None:
    assert api("PUT", "/queues/%2F/conditions", {"durable": True}).status == 201
    with sync.connect(api.process.url()) as connection:
        channel = connection.channel()
        channel.publish(b"body", routing_key="conditions")
        reply = api("DELETE", "/queues/%2F/conditions?if-empty=true")
        assert (reply.status, reply.json["reason"]) == (400, "queue 'conditions' in vhost '/' is not empty")
        assert api("DELETE", "/queues/%2F/conditions/contents").status == 204
        assert api.get("/queues/%2F/conditions")["messages"] == 0
    assert api("DELETE", "/queues/%2F/conditions?if-empty=true&if-unused=true").status == 204
    assert api("DELETE", "/queues/%2F/conditions/contents").status == 404
    assert api("PUT", "/exchanges/%2F/conditions", {"type": "fanout"}).status == 201
    assert api("POST", "/bindings/%2F/e/conditions/e/amq.topic", {}).status == 201
    assert api("DELETE", "/exchanges/%2F/conditions?if-unused=true").status == 400
    assert api("DELETE", "/exchanges/%2F/conditions").status == 204


def test_an_exchange(api: HttpBroker) -> None:
    path = "/exchanges/%2F/objects"
    body = {"type": "topic", "durable": True, "internal": True, "arguments": {"alternate-exchange": "amq.fanout"}}
    assert api("PUT", path, body).status == 201
    assert api("PUT", path, body).status == 204
    assert api("PUT", path, body | {"type": "direct"}).status == 400
    assert api("PUT", "/exchanges/%2F/unknown", {"type": "unknown"}).status == 400
    found = api.get(path)
    check_keys(found, EXCHANGE)
    check_statistics(found["message_stats"], "publish_in publish_out")
    assert {key: found[key] for key in body} == body
    assert api.get("/exchanges/%2F/amq.default")["name"] == ""
    assert api("DELETE", "/exchanges/%2F/amq.topic").status == 401
    assert api("DELETE", path).status == 204


def test_bindings(api: HttpBroker) -> None:
    assert api("PUT", "/queues/%2F/bound", {}).status == 201
    path = "/bindings/%2F/e/amq.direct/q/bound"
    cases: list[tuple[dict[str, Any], str | None]] = [
        ({"routing_key": "routing"}, "routing"),
        ({}, "~"),
        ({"routing_key": "a b/ü~", "arguments": {}}, "a+b%2F%C3%BC%7E"),
        ({"routing_key": "key", "arguments": {"x-match": "all"}}, None),
    ]
    for body, key in cases:
        reply = api("POST", path, body)
        assert reply.status == 201
        (found,) = [row for row in api.get(path) if row["properties_key"] == key or row["arguments"] == {"x-match": "all"}]
        check_keys(found, BINDING)
        assert key is None or found["properties_key"] == key
        assert found["routing_key"] == body.get("routing_key", "")
        shown = quote(found["properties_key"], safe="~")
        assert reply.headers["location"] == f"bound/{shown}"
        assert api.get(f"{path}/{shown}") == found
        assert api.get(f"{path}/{found['properties_key']}") == found
        assert api("DELETE", f"{path}/{shown}").status == 204
        assert api("GET", f"{path}/{shown}").status == 404
    default = {
        "source": "",
        "vhost": "/",
        "destination": "bound",
        "destination_type": "queue",
        "routing_key": "bound",
        "arguments": {},
        "properties_key": "bound",
    }
    assert api.get("/queues/%2F/bound/bindings") == [default]
    assert default in api.get("/bindings")
    assert default in api.get("/bindings/%2F")
    assert default in api.get("/exchanges/%2F/amq.default/bindings/source")
    assert api.get("/bindings/%2F/e/amq.default/q/bound") == [default]
    assert api("POST", "/bindings/%2F/e/amq.topic/e/amq.fanout", {"routing_key": "#"}).headers["location"] == (
        "amq.fanout/%2523"
    )
    (found,) = api.get("/exchanges/%2F/amq.fanout/bindings/destination")
    assert found in api.get("/exchanges/%2F/amq.topic/bindings/source")
    assert api("DELETE", "/bindings/%2F/e/amq.topic/e/amq.fanout/%2523").status == 204
    missing = api("POST", "/bindings/%2F/e/amq.topic/q/missing", {})
    assert (missing.status, missing.json) == (404, {"error": "not_found", "reason": "no queue 'missing' in vhost '/'"})
    assert api("DELETE", "/queues/%2F/bound").status == 204


def test_bindings_of_missing_objects(api: HttpBroker) -> None:
    for path in (
        "/exchanges/%2F/missing/bindings/source",
        "/exchanges/%2F/missing/bindings/destination",
        "/bindings/%2F/e/missing/q/missing",
        "/bindings/%2F/e/amq.default/q/missing",
    ):
        assert api.get(path) == []


def test_queues_without_statistics(api: HttpBroker) -> None:
    assert api("PUT", "/queues/%2F/reduced", {"durable": True}).status == 201
    row = api.get("/queues/%2F/reduced?disable_stats=true")
    assert (row["name"], row["durable"], row["state"]) == ("reduced", True, "running")
    assert not row.keys() & {"message_stats", "messages", "memory"}
    (listed,) = api.get("/queues?disable_stats=true&page=1&name=reduced")["items"]
    assert listed == row
    totals = {"messages": 0, "messages_ready": 0, "messages_unacknowledged": 0}
    assert api.get("/queues/%2F/reduced?disable_stats=true&enable_queue_totals=true") == row | totals
    overview = api.get("/overview?disable_stats=true")
    assert (overview["disable_stats"], overview["enable_queue_totals"]) == (True, False)
    assert api("DELETE", "/queues/%2F/reduced").status == 204


def test_replicas_of_quorum_queues(api: HttpBroker) -> None:
    for kind in ("quorum", "classic"):
        assert api("PUT", f"/queues/%2F/{kind}", {"durable": True, "arguments": {"x-queue-type": kind}}).status == 201
    node = api.get("/overview")["node"]
    (member,) = api.get("/queues/quorum/%2F/quorum/status")
    assert (member["Node Name"], member["Raft State"]) == (node, "leader")
    assert api("GET", "/queues/quorum/%2F/classic/status").status == 503
    assert api("GET", "/queues/quorum/%2F/missing/status").status == 404
    assert api("POST", "/queues/quorum/%2F/quorum/replicas/add", {"node": node}).status == 400
    assert api("DELETE", f"/queues/quorum/replicas/on/{node}/shrink").status == 400
    assert api("POST", "/rebalance/queues").status == 204
    for kind in ("quorum", "classic"):
        assert api("DELETE", f"/queues/%2F/{kind}").status == 204


def test_connections_channels_and_consumers(api: HttpBroker) -> None:
    with sync.connect(api.process.url(), connection_name="shown", reconnect=False) as connection:
        channel = connection.channel()
        channel.declare_queue("consumed")
        channel.consume("consumed", prefetch=7).__enter__()
        found = wait_until(  # lists are up to a second old
            lambda: next((row for row in api.get("/connections") if row["user_provided_name"] == "shown"), None),
            "no connection 'shown'",
        )
        check_keys(found, CONNECTION)
        assert (found["protocol"], found["user"], found["vhost"]) == ("AMQP 0-9-1", "guest", "/")
        assert found["websocket_path"] == ""
        assert (found["peer_host"], found["host"], found["port"]) == ("127.0.0.1", "127.0.0.1", api.process.port)
        assert found["name"] == f"127.0.0.1:{found['peer_port']} -> 127.0.0.1:{api.process.port}"
        path = "/connections/" + quote(found["name"], safe="")
        assert api.get(path)["connected_at"] == found["connected_at"]
        assert api("GET", path, user="manager").status == 401
        assert found["name"] in [row["name"] for row in api.get("/vhosts/%2F/connections")]
        assert found["name"] in [row["name"] for row in api.get("/connections/username/guest")]
        assert api.get("/connections", user="manager") == []
        (listed,) = api.get(path + "/channels")
        one = api.get("/channels/" + quote(listed["name"], safe=""))
        check_keys(one, CHANNEL)
        assert one["name"] == f"{found['name']} ({one['number']})"
        assert one["connection_details"] == {
            "name": found["name"],
            "peer_host": "127.0.0.1",
            "peer_port": found["peer_port"],
        }
        (consumer,) = [row for row in api.get("/consumers") if row["queue"]["name"] == "consumed"]
        check_keys(consumer, CONSUMER)
        assert (one["prefetch_count"], one["global_prefetch_count"], consumer["prefetch_count"]) == (7, 0, 7)
        assert consumer["queue"] == {"name": "consumed", "vhost": "/"}
        assert consumer["channel_details"]["name"] == one["name"]
        assert one["consumer_details"] == [consumer]
        assert api.get("/queues/%2F/consumed")["consumer_details"] == [consumer]
        assert consumer in api.get("/consumers/%2F")
        assert api("DELETE", path, user="monitor").status == 401
        assert api("DELETE", path, headers={"X-Reason": "maintenance"}).status == 204
        with pytest.raises(Exception, match="maintenance"):
            channel.declare_queue("too late")


def test_vhosts(api: HttpBroker) -> None:
    assert api("PUT", "/vhosts/a%2Fb").status == 201
    assert api("PUT", "/vhosts/a%2Fb").status == 204
    found = api.get("/vhosts/a%2Fb")
    check_keys(found, VHOST)
    check_statistics(found["message_stats"], MESSAGE_STATS)
    assert found["name"] == "a/b"
    assert found["cluster_state"] == {api.get("/overview")["node"]: "running"}
    assert api.get("/aliveness-test/a%2Fb") == {"status": "ok"}
    metadata = {"description": "", "tags": [], "default_queue_type": "classic", "protected_from_deletion": False}
    assert found["metadata"] == metadata
    assert api("PUT", "/vhosts/other", user="manager").status == 401
    metadata = {"description": "shop", "tags": ["eu", "prod"], "default_queue_type": "quorum"}
    assert api("PUT", "/vhosts/a%2Fb", metadata | {"tags": "eu, prod", "tracing": False}).status == 204
    assert api("PUT", "/vhosts/a%2Fb", {"default_queue_type": "undefined"}).status == 204
    found = api.get("/vhosts/a%2Fb")
    metadata["protected_from_deletion"] = False
    assert found["metadata"] == {key: found[key] for key in metadata} == metadata
    assert api("PUT", "/vhosts/a%2Fb", {"default_queue_type": "fast"}).status == 400
    assert api("PUT", "/vhosts/interop", {"description": ""}).status == 204
    assert api("PUT", "/vhosts/interop", {"description": "declared in the configuration"}).status == 400
    assert api("POST", "/vhosts/a%2Fb/deletion/protection").status == 204
    refused = api("DELETE", "/vhosts/a%2Fb")
    assert (refused.status, refused.json["error"]) == (412, "precondition_failed")
    assert api("DELETE", "/vhosts/a%2Fb/deletion/protection").status == 204
    assert api("DELETE", "/vhosts/a%2Fb").status == 204
    assert api("DELETE", "/vhosts/a%2Fb").status == 404
    assert api("DELETE", "/vhosts/%2F").status == 400


def test_the_firehose_of_a_vhost(api: HttpBroker) -> None:
    path = "/vhosts/traced"
    assert api("PUT", path, {"tracing": True}).status == 201
    assert api.get(path)["tracing"] is True
    assert api("PUT", path, {"description": "still traced", "tracing": None}).status == 204
    assert api.get(path)["tracing"] is True
    assert api("PUT", path, {"tracing": "false"}).status == 204
    assert api.get(path)["tracing"] is False
    refused = api("PUT", path, {"tracing": "yes"})
    assert (refused.status, refused.json["reason"]) == (400, "invalid value of 'tracing'; expected true or false")
    for user in ("monitor", "maker", "manager"):
        assert api("PUT", path, {"tracing": True}, user=user).status == 401
    assert api.get(path)["tracing"] is False
    changes = api.get("/leveret/audit?object=traced&action=vhosts.trace")["items"]
    assert [(change["before"]["tracing"], change["after"]["tracing"]) for change in changes] == [
        (True, False),
        (False, True),
    ]
    assert changes[0]["user"] == "guest"
    # A vhost of the configuration, whose settings cannot be changed.
    assert api("PUT", "/vhosts/interop", {"tracing": True}).status == 204
    assert api.get("/vhosts/interop")["tracing"] is True
    assert api("PUT", "/vhosts/interop", {"tracing": False}).status == 204
    assert api("DELETE", path).status == 204


def test_messages_that_management_publishes_and_gets_are_traced(api: HttpBroker) -> None:
    api("PUT", "/queues/%2F/traced", {})
    api("PUT", "/queues/%2F/traces", {})
    for pattern in ("publish.", "deliver.traced"):
        api("POST", "/bindings/%2F/e/amq.rabbitmq.trace/q/traces", {"routing_key": pattern})
    assert api("PUT", "/vhosts/%2F", {"tracing": True}).status == 204
    message = {"routing_key": "traced", "payload": "x", "payload_encoding": "string", "properties": {}}
    assert api("POST", "/exchanges/%2F/amq.default/publish", message).json == {"routed": True}
    get = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    assert len(api("POST", "/queues/%2F/traced/get", get).json) == 1
    assert api("GET", "/leveret/queues/%2F/traced/messages").status == 200
    found = api("POST", "/queues/%2F/traces/get", get | {"count": 10}).json
    assert [trace["routing_key"] for trace in found] == ["publish.", "deliver.traced"]
    for trace in found:
        headers = trace["properties"]["headers"]
        assert (headers["user"], headers["channel"], headers["node"]) == ("guest", 0, api.get("/overview")["node"])
        assert headers["connection"].startswith("HTTP 127.0.0.1:")
    assert api("PUT", "/vhosts/%2F", {"tracing": False}).status == 204
    for queue in ("traced", "traces"):
        api("DELETE", f"/queues/%2F/{queue}")


def test_users_and_permissions(api: HttpBroker) -> None:
    assert api("PUT", "/users/alice", {"password": "secret"}).json["reason"] == "tags_not_present"
    assert api("PUT", "/users/alice", {"password": "secret", "tags": "monitoring, management"}).status == 201
    found = api.get("/users/alice")
    assert found.pop("password_hash").startswith("$argon2id$")
    assert found == {
        "name": "alice",
        "hashing_algorithm": "leveret_password_hashing_argon2id",
        "tags": ["monitoring", "management"],
        "limits": {},
    }
    assert "alice" in [user["name"] for user in api.get("/users/without-permissions")]
    assert api("GET", "/whoami", user="alice", password="secret").json["tags"] == ["management", "monitoring"]
    path = "/permissions/%2F/alice"
    body = {"configure": "^a", "write": ".*", "read": ""}
    assert api("PUT", path, body).status == 201
    assert api("PUT", path, body).status == 204
    assert api("PUT", path, body | {"read": "("}).status == 400
    expected = {"user": "alice", "vhost": "/", **body}
    assert api.get(path) == expected
    assert api.get("/users/alice/permissions") == [expected]
    assert expected in api.get("/permissions")
    assert expected in api.get("/vhosts/%2F/permissions")
    for missing in ("/permissions/%2F/missing", "/permissions/missing/alice"):
        assert api("PUT", missing, body).json == {"error": "bad_request", "reason": "vhost_or_user_not_found"}
    assert api("PUT", "/users/alice", {"password": "other", "tags": []}).status == 204
    assert api("GET", "/whoami", user="alice", password="secret").status == 401
    assert api("GET", "/whoami", user="alice", password="other").json["reason"] == "Not management user"
    assert api("DELETE", path).status == 204
    assert api("DELETE", path).status == 404
    assert api("PUT", "/users/bob", {"password": "x", "tags": ["any"]}).status == 201
    assert api("POST", "/users/bulk-delete", {"users": ["alice", "bob", "missing"]}).status == 204
    assert api("DELETE", "/users/alice").status == 404
    assert api("PUT", "/users/guest", {"tags": []}).status == 400  # declared in the configuration


def test_users_with_hashes(api: HttpBroker) -> None:
    made = api.get("/auth/hash_password/secret")["ok"]
    assert api("POST", "/auth/hash_password", {"password": "secret"}).json["ok"] != made  # another salt
    body = {"password_hash": made, "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": "monitoring"}
    assert api("PUT", "/users/moved", body).status == 201
    assert api.get("/users/moved")["password_hash"] == made
    assert api("GET", "/whoami", user="moved", password="secret").status == 200
    assert api.get("/users/moved")["password_hash"].startswith("$argon2id$")  # replaced by the login
    assert api("PUT", "/users/moved", {"tags": "protected"}).status == 204  # removes the password
    assert api("GET", "/whoami", user="moved", password="secret").status == 401
    assert api("PUT", "/users/moved", {"administrator": "true", "password": "x"}).status == 204
    assert api.get("/users/moved")["tags"] == ["administrator"]
    assert api("PUT", "/users/moved", {"tags": "protected"}).status == 204
    assert api("DELETE", "/users/moved").status == 400
    assert api("POST", "/users/bulk-delete", {"users": ["moved"]}).status == 400
    assert api("PUT", "/users/moved", {"tags": ""}).status == 204
    for body in ({"password_hash": "not a hash", "tags": ""}, {"password_hash": made, "password": "x", "tags": ""}):
        assert api("PUT", "/users/moved", body).status == 400
    assert api("DELETE", "/users/moved").status == 204


def test_topic_permissions(api: HttpBroker) -> None:
    assert api("PUT", "/users/sensor", {"password": "sensor", "tags": "management"}).status == 201
    assert api("PUT", "/permissions/%2F/sensor", {"configure": "", "write": ".*", "read": ".*"}).status == 201
    path = "/topic-permissions/%2F/sensor"
    body = {"exchange": "amq.topic", "write": "^{username}\\.", "read": "^public\\."}
    assert api("GET", path).status == 404
    assert api("PUT", path, body).status == 201
    assert api("PUT", path, body).status == 204
    expected = [{"user": "sensor", "vhost": "/", **body}]
    for shown in (
        path,
        f"{path}/amq.topic",
        "/topic-permissions",
        "/users/sensor/topic-permissions",
        "/vhosts/%2F/topic-permissions",
    ):
        assert api.get(shown) == expected, shown
    assert api("GET", f"{path}/amq.direct").status == 404
    message = {"properties": {}, "routing_key": "sensor.1", "payload": "", "payload_encoding": "string"}
    publish = "/exchanges/%2F/amq.topic/publish"
    assert api("POST", publish, message, user="sensor").json == {"routed": False}
    for refused in ({"routing_key": "other.1"}, {"properties": {"headers": {"CC": ["other.1"]}}}):
        assert api("POST", publish, message | refused, user="sensor").status == 401
    assert api("POST", "/bindings/%2F/e/amq.topic/e/amq.fanout", {"routing_key": "#"}, user="sensor").status == 401
    assert api("PUT", path, body | {"write": "("}).status == 400
    assert api("PUT", path, {"exchange": "amq.topic"}).json["reason"] == "[{key_missing,write},{key_missing,read}]"
    assert api("PUT", "/topic-permissions/%2F/missing", body).json["reason"] == "vhost_or_user_not_found"
    assert api("DELETE", f"{path}/amq.topic").status == 204
    assert api("DELETE", path).status == 404
    assert api("DELETE", "/users/sensor").status == 204


def test_pages(api: HttpBroker) -> None:
    for number in range(5):
        assert api("PUT", f"/queues/%2F/page-{number}", {"durable": True}).status == 201
    page = api.get("/queues/%2F?page=2&page_size=2&name=^PAGE-&use_regex=true&pagination=false&sort=name&columns=name")
    assert page["items"] == [{"name": "page-2"}, {"name": "page-3"}]
    assert (page["filtered_count"], page["item_count"], page["page_count"], page["page"]) == (5, 2, 3, 2)
    assert page["total_count"] >= 5
    for query in ("page=0", "page=9&name=page-", "page=1&page_size=501", "page=x", "page=1&name=(&use_regex=true"):
        assert api("GET", f"/queues/%2F?{query}").status == 400, query
    for number in range(5):
        assert api("DELETE", f"/queues/%2F/page-{number}").status == 204


def paths(row: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the paths of the values of a row that can be compared."""
    for key, value in row.items():
        if isinstance(value, dict):
            yield from paths(value, f"{prefix}{key}.")
        elif isinstance(value, (int, float, str)):
            yield f"{prefix}{key}"


def value_of(row: Any, path: str) -> Any:
    for key in path.split("."):
        row = row[key]
    return row


@pytest.mark.parametrize("kind", ["queues", "exchanges", "connections", "channels"])
def test_lists_are_sorted_by_the_values_that_they_show(api: HttpBroker, kind: str) -> None:
    with ExitStack() as stack:
        for number in range(3):
            connection = stack.enter_context(sync.connect(api.process.url()))
            for _ in range(3 - number):
                channel = connection.channel()
            channel.declare_queue(f"sorted-{number}", exclusive=True)
            for _ in range(number):
                channel.publish(b"body", routing_key=f"sorted-{number}")
            channel.consume(f"sorted-{number}").__enter__()
        rows: list[Any] = wait_until(lambda: rows if len(rows := api.get(f"/{kind}")) >= 3 else None, "rows")
        common = set.intersection(*[set(paths(row)) for row in rows])
        common = {path for path in common if not path.startswith(("client_properties", "arguments"))}
        assert len(common) > 8
        for path in sorted(common):
            found = [value_of(row, path) for row in api.get(f"/{kind}?page=1&page_size=500&sort={path}")["items"]]
            assert found == sorted(found), path


@pytest.mark.parametrize(("path", "change"), [
    ("/users/guest", {"tags": []}),
    ("/users/guest", {"password_hash": ""}),
    ("/users/guest", {"password": "guest"}),
    ("/users/guest", {"limits": {"max-channels": 9}}),
    ("/users/plain", {"tags": "management"}),
    ("/permissions/%2F/guest", {"read": "^a"}),
    ("/vhosts/interop", {"description": "other"}),
    ("/vhosts/interop", {"tags": "other"}),
    ("/vhosts/interop", {"protected_from_deletion": True}),
])  # fmt: skip
def test_objects_of_the_configuration_may_be_written_as_they_are(
    api: HttpBroker, path: str, change: dict[str, Any]
) -> None:
    read = api.get(path)
    for _ in range(2):
        assert api("PUT", path, read).status == 204
        assert api.get(path) == read
    if "password" in change:
        del read["password_hash"]
    reply = api("PUT", path, {**read, "metadata": {}, **change})
    assert reply.status == 400
    assert "is declared in" in reply.json["reason"]
    assert {**api.get(path), **read} == api.get(path)

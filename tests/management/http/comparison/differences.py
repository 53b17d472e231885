"""The intended differences between the answers of RabbitMQ 3.10 and those of Leveret, each with its reason.

Where RabbitMQ 3.10 and 4 differ, Leveret answers like 4, whose tools are newer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

# Reasons for keys that only Leveret has.
_NEWER: Final = "RabbitMQ 4 has this key"
_ALWAYS: Final = "Leveret always has this key; RabbitMQ omits it until there is a value"
# Keys that only Leveret has.
ADDED: Final = {
    **dict.fromkeys(
        (
            "being_drained",
            "cluster_tags",
            "consumer_timeout",
            "default_queue_type",
            "is_op_policy_updating_enabled",
            "leader",
            "maintenance",
            "metadata_store",
            "metadata_store_ets",
            "members",
            "node_tags",
            "oauth_enabled",
            "online",
            "protected_from_deletion",
        ),
        _NEWER,
    ),
    **dict.fromkeys(
        (
            "consumer_capacity",
            "consumer_utilisation",
            "consumers",
            "description",
            "explanation",
            "limits",
            "original_cluster_name",
            "original_vhost_name",
            "rabbitmq_definition_format",
            "contexts",
            "exclusive_consumer_tag",
            "garbage_collection",
            "head_message_timestamp",
            "idle_since",
            "message_bytes",
            "message_bytes_paged_out",
            "message_bytes_persistent",
            "message_bytes_ram",
            "message_bytes_ready",
            "message_bytes_unacknowledged",
            "message_stats",
            "messages",
            "messages_paged_out",
            "messages_persistent",
            "messages_ram",
            "messages_ready",
            "messages_ready_ram",
            "messages_unacknowledged",
            "messages_unacknowledged_ram",
            "metadata",
            "policy",
            "recoverable_slaves",
            "recv_oct",
            "reductions",
            "send_oct",
            "single_active_consumer_tag",
            "tags",
            "type",
            "user_provided_name",
            "user_who_performed_action",
        ),
        _ALWAYS,
    ),
    "*_details": _ALWAYS,
    "websocket_path": "RabbitMQ has no AMQP over WebSocket",
}
# Keys that only RabbitMQ 3.10 has.
OMITTED: Final = {
    "backing_queue_status": "the counters of RabbitMQ's classic queues, which its documentation calls internal",
}


class Difference:
    """Intended differences of some answers.

    Args:
        requests: The requests, with `*` for any characters: `GET /queues/*`.
        findings: Texts of `compare.differences`, with `*`.
        reason: Why.
    """

    def __init__(self, requests: str, findings: str, reason: str) -> None:
        self._requests = _pattern(requests)
        self._findings = _pattern(findings)
        self.text = f"{requests}: {findings}"
        self.reason = reason

    def covers(self, request: str, finding: str) -> bool:
        return bool(self._requests.fullmatch(request) and self._findings.fullmatch(finding))


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in text.split("*")), re.DOTALL)


def _keys() -> Iterable[Difference]:
    for key, reason in ADDED.items():
        yield Difference("*", f"body*.{key}: missing | *", reason)
    for key, reason in OMITTED.items():
        yield Difference("*", f"body*.{key}: * | missing", reason)


_FAILS: Final = "RabbitMQ 3.10 fails with an exception"
_PRODUCT: Final = "names and versions of the product"
_MACHINE: Final = "paths, ports and process numbers"
_PAGES: Final = "every list has pages; in RabbitMQ 3.10 some have none"
_HIDDEN: Final = "a vhost that the user may not see does not exist, as in RabbitMQ 4"
_SEEN: Final = "users see the vhosts and policies that apply to them, and monitoring sees all vhosts, as in RabbitMQ 4"
_STRICT: Final = "a value of the wrong type is refused"
_ANSWERS: Final = [
    Difference("*", "status: 500 | *", _FAILS),
    Difference("*", "header cache-control: None | no-cache", "no answer may be cached, errors included"),
    Difference("* /health*", "header cache-control: no-cache | *", "health checks are not even stored"),
    Difference("*", "header vary: * | accept, accept-encoding, origin", "all answers are compressed alike"),
    Difference("* /*-limits*", "header allow: * | *GET, HEAD, OPTIONS*", "HEAD works wherever GET does"),
    Difference("HEAD /*-limits*", "status: 405 | *", "HEAD works wherever GET does"),
    Difference("*", "header content-type: None | application/json", "answers of errors have a body that says why"),
    Difference("*", 'body:  | {"error": "method_not_allowed", *', "answers of errors have a body that says why"),
    # The product and its machine
    Difference("*", "body*product_name: *", _PRODUCT),
    Difference("*", "body*_version: *", _PRODUCT),
    Difference("GET /nodes*", "body*.applications[*", _PRODUCT),
    Difference("GET /*", "body*.exchange_types[*", "exchange types of plugins"),
    Difference("GET /nodes*", "body*.auth_mechanisms[*", "the mechanisms of the broker"),
    Difference("GET /*", "body*.contexts[]*", "contexts are the same in the overview and in nodes"),
    Difference("GET /*", "body.listeners*", "RabbitMQ listens for its cluster and plugins, too"),
    Difference("GET /nodes*", "body*.config_files: *", _MACHINE),
    Difference("GET /nodes*", "body*.db_dir: *", _MACHINE),
    Difference("GET /nodes*", "body*.enabled_plugins: *", _PRODUCT),
    Difference("GET /nodes*", "body*.log_files: *", "Leveret logs to its standard error"),
    Difference("GET /nodes*", "body*.io_file_handle_open_attempt*", "RabbitMQ 4 has this key"),
    Difference("GET /health/checks/*-listener/*", "body.ports: *", _MACHINE),
    Difference("GET /health/checks/*-listener/*", "body.protocols: *", _MACHINE),
    Difference("GET /extensions*", "body: * | *dispatcher.js*", "Leveret has no plugins with pages of RabbitMQ's console"),
    Difference("GET /auth*", "body.enable_uaa: * | missing", "RabbitMQ 4 has other keys"),
    Difference("GET /auth*", "body.uaa_*: * | missing", "RabbitMQ 4 has other keys"),
    Difference("GET /auth/attempts/{node}*", "body[#*]: * | missing", "attempts to log in are not counted"),
    Difference("GET /feature-flags*", "body*: *", "Leveret has the feature flags of what it has, which are always enabled"),
    Difference("GET /top/*", "body.*[*]: * | missing", "Leveret has no processes and tables of Erlang"),
    Difference("* /process/*", "status: 200 | 404", "Leveret has no processes and tables of Erlang"),
    Difference("GET /nodes/{node}/memory/ets", "status: 200 | 404", "Leveret has no processes and tables of Erlang"),
    Difference("GET /nodes/{node}?*binary=true*", "body.binary: * | missing", "Leveret has no binaries of Erlang"),
    Difference("GET /cluster-name*", "body.name: *", "the cluster is named like the node"),
    Difference("GET /overview*", "body.cluster_name: *", "the cluster is named like the node"),
    Difference("*", 'body*.default_queue_type: "undefined" | "classic"', "RabbitMQ 4 says the default"),
    # Pages, columns and parameters of statistics
    Difference("GET /*page=*", 'body: [* | {"filtered_count"*', _PAGES),
    Difference("GET /*page=*", "status: 200 | 400", _PAGES),
    Difference("GET /*columns=*", "body: *[]* | [{*", "an object without keys is an object"),
    Difference("GET /overview?*columns=*", "body: [] | {}", "an object without keys is an object"),
    Difference("GET /*columns=*.*", "body*: * | missing", "columns lead into objects"),
    Difference("GET /*_age=x*", "status: 200 | 400", _STRICT),
    # Visible objects
    Difference("* by *", "status: 401 | 404", _HIDDEN),
    Difference("GET /vhosts/* by *", "status: 401 | 200", _SEEN),
    Difference("GET /*/hidden* by monitor", "status: 401 | 200", _SEEN),
    Difference("GET /*policies/other/* by *", "status: 401 | 200", _SEEN),
    Difference("GET /consumers/* by *", "status: 200 | 404", _HIDDEN),
    Difference("GET /user-limits* by *", "status: 200 | 401", "the names of users are for administrators"),
    Difference("GET /*", "body.node: missing | *", "the name of the node is no secret"),
    Difference("GET /* by monitor", "body[*]: missing | *", _SEEN),
    # Objects
    Difference("GET /*", 'body*.user_who_performed_action: * | ""', "Leveret does not know who declared an exchange"),
    Difference("GET /*", "body*[*amq.leveret.events#0]: missing | *", "exchanges of Leveret"),
    Difference("GET /*", "body*[*leveret.control#0]: missing | *", "exchanges of Leveret"),
    Difference("GET /exchanges/other?*page=*", "body.*count: *", "exchanges of Leveret"),
    Difference("GET /exchanges/other?page=2&page_size=2", "body.items[*", "exchanges of Leveret"),
    Difference("GET /overview*", "body.sample_retention_policies.*", "the windows of samples that Leveret keeps"),
    Difference("GET /*", "body*.message_stats.*: missing | 0", _ALWAYS),
    Difference("GET /*", "body.churn_rates.*: missing | *", _ALWAYS),
    Difference("GET /connections/username/*", "body[].*: missing | *", "connections have the same keys in all lists"),
    Difference("GET /*disable_stats=true*", 'body*.state: "live" | "running"', "the state is the same with statistics"),
    Difference("GET /queues/other*disable_stats=true*", "body[].exclusive: null | false", _FAILS),
    Difference("GET /queues/other*disable_stats=true*", "body[].t*: null | missing", _FAILS),
    Difference(
        "GET /overview*disable_stats=true*", "body*: missing | *", "keys of a cheap answer, which need no statistics"
    ),
    Difference("GET *connections*", 'body*.container_id: missing | ""', "RabbitMQ 4 has this key, for AMQP 1.0"),
    Difference("GET /*", "body*.hashing_algorithm: * | *", "passwords have an argon2id hash, also after a login"),
    Difference("GET /*", "body*.scram_keys: missing | *", "users can log in by SCRAM after an import"),
    Difference("GET /*", "body*[internal_cluster_id#0]: * | missing", "Leveret has no cluster"),
    Difference("GET /definitions/other", "body.p*[*]: *", "objects of one vhost do not repeat its name, as in RabbitMQ 4"),
    Difference("*", 'body.error: "not_found" | "Object Not Found"', "one text for one status"),
    Difference("*", 'body.error: "invalid_range_parameters" | "bad_request"', "one text for one status"),
    Difference(
        "GET /queues/other?disable_stats=true*", "body*.node: missing | *", "queues have the same keys in all lists"
    ),
    Difference("OPTIONS /*", "header allow: DELETE, GET, HEAD, OPTIONS | GET, HEAD, OPTIONS", "Leveret has none to delete"),
    # Missing objects
    Difference("* /queues/other/missing/bindings", "status: 200 | 404", "RabbitMQ shows a binding of a missing queue"),
    Difference("* /topic-permissions/*", "status: 20* | 404", "RabbitMQ ignores the exchange in the path"),
    Difference("* /traces/missing", "status: 200 | 404", "a missing vhost is 404"),
    Difference("OPTIONS /nothing", "status: 200 | 404", "a path that does not exist is 404"),
    Difference("POST *", "status: 401 | 404", "a missing vhost is 404"),
    Difference("POST *", "status: 400 | 404", "a missing object is 404"),
    Difference("PUT /user-limits/missing/*", "status: 400 | 404", "a missing object is 404"),
    Difference(
        "POST /users/bulk-delete", "status: 400 | 204", "missing users are ignored, so that a request can be repeated"
    ),
    Difference("GET /queues/quorum/*", "status: 404 | *", "RabbitMQ 4 has this path"),
    # Bodies
    Difference("PUT /vhosts/new", "status: 204 | 400", _STRICT),
    Difference("PUT /users/new", "status: 204 | 400", _STRICT),
    Difference("DELETE /user-limits/new/unknown", "status: 204 | 400", "an unknown limit is refused"),
    Difference("POST *", "status: 20* | 400", _STRICT),
    Difference("POST /exchanges/*", "status: 400 | 200", "headers may be null"),
    Difference("GET /bindings/other/e/logs/q/empty", "body[*]: missing | *", "arguments may be null"),
    Difference("GET /definitions?*", "body.*", "what requests before have left"),
    Difference("PUT /queues/other/node", "status: 400 | 201", "there is one node"),
    Difference("DELETE /queues/other/*", "status: 404 | 204", "the request before has succeeded"),
    Difference("POST /definitions", "status: 400 | 204", "users without tags have none"),
    Difference("POST /definitions", "body.refused: missing | *", "an import reports each refused object"),
    Difference("POST /bindings/*", "header location: *+*", "a space in a path is %20"),
    Difference("GET /*-limits/*", "body[*: * | missing", "a negative number is no limit"),
    # Authentication
    Difference("GET /whoami by None", "status: 400 | 401", "invalid credentials are refused like wrong ones"),
    Difference("GET /whoami", "status: 406 | 200", "JSON is the only content type"),
    Difference("GET /whoami", "header content-type: application/bert | application/json", "JSON is the only content type"),
    Difference("GET /whoami", "body: * | {*", "JSON is the only content type"),
]
DIFFERENCES: Final = [*_keys(), *_ANSWERS]

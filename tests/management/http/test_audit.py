"""The audit log over the HTTP API: changes of all interfaces, and who may see them."""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import Any

from leveret import sync
from leveret.management import control_client
from tests.management.http.client import HttpBroker
from tests.management.http.test_process import make


def audit(api: HttpBroker, query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(f"/leveret/audit?{query}")["items"]
    return found


def test_a_change_over_http_names_the_user_and_the_address(api: HttpBroker) -> None:
    api("PUT", "/queues/%2F/mine-audited", {"durable": True}, user="manager")
    api("PUT", "/vhosts/audited", {})
    api("DELETE", "/queues/%2F/mine-audited")
    deleted, declared = audit(api, "object=mine-audited")
    assert (declared["action"], declared["user"], declared["before"]) == ("queue.declare", "manager", None)
    assert declared["source"].startswith("HTTP 127.0.0.1:")
    assert (deleted["action"], deleted["user"], deleted["after"]) == ("queue.delete", "guest", None)
    (added,) = audit(api, "object=audited&kind=vhost")
    assert (added["action"], added["user"]) == ("vhosts.add", "guest")
    api("DELETE", "/vhosts/audited")


def test_changes_over_the_control_socket_and_the_management_node(api: HttpBroker) -> None:
    control_client.call(api.process.data_dir, "queues.add", {"name": "audited-cli"})
    (record,) = audit(api, "object=audited-cli")
    assert (record["user"], record["source"]) == (getpass.getuser(), f"control socket, process {os.getpid()}")
    with sync.connect(api.process.url(), protocol="1.0") as connection:
        connection.open_channel().declare_queue("audited-node")
    (record,) = audit(api, "object=audited-node")
    assert (record["action"], record["user"]) == ("queue.declare", "guest")
    assert record["source"].endswith("/management")
    for name in ("audited-cli", "audited-node"):
        api("DELETE", f"/queues/%2F/{name}")


def test_an_import_names_its_user(api: HttpBroker) -> None:
    queue = {"name": "audited-import", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    assert api("POST", "/definitions", {"queues": [queue]}).status in (200, 204)
    (record,) = audit(api, "object=audited-import")
    assert (record["action"], record["user"]) == ("queues.add", "guest")
    api("DELETE", "/queues/%2F/audited-import")


def test_administrators_alone_see_the_audit_log(api: HttpBroker) -> None:
    for user in ("monitor", "maker", "manager"):
        assert api("GET", "/leveret/audit", user=user).status == 401


def test_invalid_conditions(api: HttpBroker) -> None:
    for query in ("since=x", "page=0", "page=x", "page_size=1000"):
        assert api("GET", f"/leveret/audit?{query}").status == 400


def test_a_confirmed_change_is_in_the_log_after_a_kill(tmp_path: Path) -> None:
    process = make(tmp_path)
    with process.start():
        api = HttpBroker(process)
        assert api("PUT", "/queues/%2F/q", {"durable": True}).status == 201
        process.kill()
        process.start()
        assert [record["name"] for record in audit(api, "")] == ["q"]


def test_the_audit_log_can_be_turned_off(tmp_path: Path) -> None:
    process = make(tmp_path, audit="false")
    with process.start():
        api = HttpBroker(process)
        reply = api("GET", "/leveret/audit")
        assert (reply.status, reply.json["reason"]) == (400, "there is no audit log; the setting is management.audit")
        assert not (process.data_dir / "audit.sqlite").exists()

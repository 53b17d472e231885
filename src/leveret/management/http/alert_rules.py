"""Rules of alerts, and the alerts that are raised."""

from __future__ import annotations

from typing import Final

import msgspec

from leveret._text import field_error
from leveret.management.http import global_parameters
from leveret.management.http.alerts import MAX_RULES, Rule
from leveret.management.http.errors import bad_request
from leveret.management.http.identity import POLICYMAKERS
from leveret.management.http.lists import select
from leveret.management.http.mail import is_allowed
from leveret.management.http.places import Kind
from leveret.management.http.prometheus_rules import describe
from leveret.management.http.request import Answer, Request

_MAX_NAME: Final = 200
_RULES: Final = Kind("rules of alerts", MAX_RULES)


async def list_raised(request: Request) -> Answer:
    """List the alerts that are raised."""
    found = [
        msgspec.structs.asdict(alert) for alert in request.alerts.raised.values() if request.identity.sees(alert.vhost)
    ]
    return Answer(body=select(sorted(found, key=lambda row: int(row["since"])), request.query, is_ordered=True))


async def list_rules(request: Request) -> Answer:
    """List the rules of alerts. Only users who may set them see their webhooks and addresses."""
    found = [{"name": name, **msgspec.structs.asdict(rule)} for name, rule in (await _visible(request)).items()]
    if request.identity.tags.isdisjoint(POLICYMAKERS):
        found = [row | {"webhook": "", "mail": []} for row in found]
    return Answer(body=select(found, request.query))


async def _visible(request: Request) -> dict[str, Rule]:
    """Return the rules of vhosts that the user sees."""
    rules = await request.alerts.rules()
    return {name: rule for name, rule in rules.items() if global_parameters.sees(request.identity, rule.vhost)}


async def download(request: Request) -> Answer:
    """Return the rules of alerts as a file for Prometheus."""
    headers = (("content-type", "application/yaml"), ("content-disposition", 'attachment; filename="leveret-rules.yml"'))
    return Answer(headers=headers, content=describe(await _visible(request)).encode())


async def list_webhooks(request: Request) -> Answer:
    """List the URLs that rules may send alerts to."""
    return Answer(body=[webhook.url for webhook in request.settings.webhooks])


async def list_addresses(request: Request) -> Answer:
    """List the mail addresses, and domains of addresses, that rules may send alerts to."""
    mail = request.settings.mail
    return Answer(body=mail.recipients if mail.host else [])


async def list_deliveries(request: Request) -> Answer:
    """List what was sent to the mail server and to each webhook since the start, and what failed."""
    return Answer(body=select([msgspec.structs.asdict(found) for found in request.deliveries()], request.query))


async def put_rule(request: Request) -> Answer:
    """Add or replace a rule: `kind` is required."""
    name = request.name
    if not name or len(name) > _MAX_NAME:
        raise bad_request(f"the name of a rule has {len(name)} characters; expected 1 to {_MAX_NAME}")
    try:
        rule = msgspec.convert(request.body(), Rule)
    except msgspec.ValidationError as error:
        raise bad_request(f"invalid rule: {field_error(error)}") from None
    try:
        rule.compiled()
    except ValueError as error:
        raise bad_request(f"regular expression '{rule.pattern[:80]}' {error}") from None
    if rule.webhook and all(rule.webhook != webhook.url for webhook in request.settings.webhooks):
        raise bad_request(
            f"webhook '{rule.webhook[:200]}' is not allowed; expected one of the URLs in the settings"
            " management.alert_webhooks and management.webhooks"
        )
    mail = request.settings.mail
    for address in rule.mail:
        if not mail.host:
            raise bad_request("the broker sends no mails; the setting is management.mail.host")
        if not is_allowed(address, mail.recipients):
            raise bad_request(
                f"mail address '{address}' is not allowed; expected one of the addresses, or an address of the domains, in"
                " the setting management.mail.recipients"
            )
    value = msgspec.structs.asdict(rule)
    return await global_parameters.store(request, global_parameters.ALERT_RULE, rule.vhost, value, _RULES)


async def delete_rule(request: Request) -> Answer:
    """Delete a rule; its alerts are cleared."""
    return await global_parameters.delete(request, global_parameters.ALERT_RULE)

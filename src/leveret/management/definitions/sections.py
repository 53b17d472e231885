"""The sections of a definitions file: how the objects of each are listed, exported, compared and imported.

An entry is an object in the form of the file, with only the keys that are known. Entries of the broker come from the
rows of list operations, entries of a file from `items`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypeVar

import msgspec

from leveret._text import field_error
from leveret.management.definitions import items
from leveret.management.definitions.conversation import Call, Row
from leveret.management.http.binding_keys import special_values
from leveret.security.passwords import ARGON2ID, RABBITMQ_SHA256
from leveret.security.tags import parse_tags

Entry: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[str, ...]
ItemT = TypeVar("ItemT", bound=items.Item)

CLASSIC: Final = "classic"
QUEUE_TYPE: Final = "x-queue-type"
RESERVED: Final = "amq."
# The key of exchanges, queues and bindings for the arguments with the types that JSON lacks.
ENCODED: Final = "encoded"
_CONTROL: Final = "leveret.control"
# Global parameters with this prefix belong to one RabbitMQ cluster.
_INTERNAL: Final = "internal"
_USER_LIMITS: Final = {"max-connections": "max_connections", "max-channels": "max_channels"}
# Whether the messages of a vhost are traced.
_TRACING: Final = "tracing"
# Properties of a vhost that RabbitMQ has, too, and settings that it does not have, with their defaults.
_METADATA: Final = ("description", "tags", "default_queue_type", "protected_from_deletion")
_SETTINGS: Final = {"strict": False, "qos_global": None, "consumer_timeout": 0, "max_queues": 0, "max_connections": 0}
# Keys of users that reports do not show.
SECRETS: Final = ("password", "password_hash", "hashing_algorithm", "scram_keys")
# Default queue types that stand for that of the broker.
_UNDEFINED: Final = (None, "", "undefined")


class Refused(Exception):
    """An object cannot be imported. The message says why."""


class Skipped(Exception):
    """An object is left as it is, or is not imported on purpose. The message says why."""


@dataclass(frozen=True, slots=True)
class Existing:
    """An object of the broker, or one that the import adds.

    Attributes:
        entry: The object in the form of the file.
        source: The origin of a user, its permissions, or a vhost: `config`, `default` or `metadata`.
    """

    entry: Entry
    source: str = "metadata"


@dataclass(slots=True)
class Known:
    """The objects of the broker by section and key, and the options of the import that depend on them.

    Attributes:
        objects: The objects of the sections that the import reads.
        keep_passwords: Whether a user whose hash is not in RabbitMQ's format keeps its password.
    """

    objects: dict[str, dict[Key, Existing]]
    keep_passwords: bool = False

    def find(self, section: str, *key: str) -> Existing | None:
        return self.objects[section].get(key)

    def check_vhost(self, name: str) -> None:
        """Raise `Refused` unless the vhost exists or is imported."""
        if self.find(VHOSTS.name, name) is None:
            raise Refused(f"vhost '{name}' does not exist, and the file does not have it")


class Section(Generic[ItemT]):
    """A section of the file. The base class is for objects that a single operation adds and replaces.

    Attributes:
        name: The key in the file.
        noun: The name of one object in messages.
        list_call: The operation that lists the objects.
        set_call: The operation that adds an object, and replaces one if it can be replaced.
        identity: The keys that identify an object.
        item: The struct of the objects in a file.
        fields: The keys of a row that the file has.
        in_vhost: Whether the objects belong to a vhost.
        in_vhost_file: Whether files of a single vhost have the section.
        needs: Other sections whose objects these refer to.
    """

    name: ClassVar[str]
    noun: ClassVar[str]
    list_call: ClassVar[str]
    set_call: ClassVar[str]
    identity: ClassVar[tuple[str, ...]]
    item: type[ItemT]
    fields: ClassVar[tuple[str, ...]] = ()
    in_vhost: ClassVar[bool] = True
    in_vhost_file: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ()

    # Objects of the broker

    def list_arguments(self, vhost: str | None) -> Row:
        """Return the fields of the request for the list of objects, of one vhost or of all."""
        return {} if vhost is None or not self.in_vhost else {"vhost": vhost}

    def entry_of(self, row: Row) -> Entry:
        """Return the entry of a row."""
        return {name: row[name] for name in self.fields}

    def existing(self, row: Row) -> Existing:
        """Return the object of a row."""
        return Existing(self.entry_of(row), row.get("source", "metadata"))

    def is_exported(self, row: Row) -> bool:
        """Return whether exports include the object of a row."""
        return True

    # Objects of a file

    def read(self, item: object, vhost: str | None) -> Entry:
        """Return the entry of an object of a file, for one vhost or for the vhost that the object names.

        Raises `Refused`.
        """
        if not isinstance(item, dict):
            raise Refused("expected an object")
        if vhost is not None and self.in_vhost:
            item = {**item, "vhost": vhost}
        try:
            found = msgspec.convert(item, self.item)
        except msgspec.ValidationError as error:
            raise Refused(field_error(error)) from None
        if self.in_vhost and getattr(found, "vhost", None) is None:
            raise Refused("the key 'vhost' is missing; import a file of a single vhost into that vhost")
        return self.entry_of_item(found)

    def entry_of_item(self, item: ItemT) -> Entry:
        """Return the entry of an object of a file. Raises `Refused`."""
        return _given(item)

    # Comparison and import

    def key(self, entry: Entry) -> Key:
        """Return the key that identifies an object in its section."""
        return tuple(entry[name] for name in self.identity)

    def label(self, entry: Entry) -> str:
        """Return the name of an object in messages."""
        inside = f" in vhost '{entry['vhost']}'" if self.in_vhost else ""
        return f"{self.noun} '{entry['name']}'{inside}"

    def comparable(self, entry: Entry) -> Entry:
        """Return the keys of an entry that a comparison includes."""
        return {name: value for name, value in entry.items() if name not in self.identity}

    def prepared(self, entry: Entry, existing: Existing | None, known: Known) -> Entry:
        """Return the part of an object of a file that the import applies."""
        return entry

    def note(self, entry: Entry, known: Known) -> str:
        """Return what the report says of an object of a file that the import does not apply as it is; "" if it does."""
        return ""

    def difference(self, entry: Entry, existing: Existing | None) -> tuple[Entry, Entry]:
        """Return the values that differ, before and after. A key that the file does not have does not differ."""
        wanted = self.comparable(entry)
        current = {} if existing is None else self.comparable(existing.entry)
        names = [name for name, value in wanted.items() if name not in current or current[name] != value]
        return {name: current.get(name) for name in names}, {name: wanted[name] for name in names}

    def check(self, entry: Entry, known: Known) -> None:
        """Raise `Refused` or `Skipped` if an object cannot be imported, whether it exists or not."""
        if self.in_vhost:
            known.check_vhost(entry["vhost"])

    def check_change(self, entry: Entry, existing: Existing) -> None:
        """Raise `Skipped` if an object that exists with other properties cannot be changed."""

    def calls(self, entry: Entry, existing: Existing | None, known: Known) -> list[Call]:
        """Return the calls that add an object or change an existing one."""
        return [Call(self.set_call, entry)]


class Users(Section[items.User]):
    name = "users"
    noun = "user"
    list_call = "users.list"
    set_call = "users.set"
    identity = ("name",)
    item = items.User
    in_vhost = False
    in_vhost_file = False

    def list_arguments(self, vhost: str | None) -> Row:
        return {"hashes": True}

    def entry_of(self, row: Row) -> Entry:
        entry: Entry = {
            "name": row["name"],
            "password_hash": row["password_hash"],
            "hashing_algorithm": row["hashing_algorithm"] or RABBITMQ_SHA256,
        }
        if row["scram_keys"] is not None:
            entry["scram_keys"] = row["scram_keys"]
        entry["tags"] = row["tags"]
        # A negative setting allows none.
        limits = {name: max(row[field], 0) for name, field in _USER_LIMITS.items() if row[field]}
        return {**entry, "limits": limits}

    def entry_of_item(self, item: items.User) -> Entry:
        if item.password is not None and item.password_hash:
            raise Refused("expected either 'password' or 'password_hash', received both")
        entry = _given(item)
        entry.pop("permissions", None)  # which `read_document` has moved to their section
        entry["tags"] = list(parse_tags(item.tags or ()))
        limits = _table(item.limits, "limits")
        for name, limit in limits.items():
            if name not in _USER_LIMITS or not isinstance(limit, int) or isinstance(limit, bool):
                raise Refused(f"invalid limit '{name}'; expected {' or '.join(_USER_LIMITS)} with an integer")
        entry["limits"] = {name: limit for name, limit in limits.items() if limit >= 0}
        if item.password is not None or item.password_hash is None:
            for name in ("password_hash", "hashing_algorithm", "scram_keys"):
                entry.pop(name, None)
        elif item.password_hash == "":
            entry["hashing_algorithm"] = RABBITMQ_SHA256
            entry.pop("scram_keys", None)
        else:
            default = ARGON2ID if item.password_hash.startswith("$argon2id$") else RABBITMQ_SHA256
            entry["hashing_algorithm"] = item.hashing_algorithm or default
        return entry

    def prepared(self, entry: Entry, existing: Existing | None, known: Known) -> Entry:
        keeps_password = known.keep_passwords and existing is not None and existing.entry["hashing_algorithm"] == ARGON2ID
        prepared = {name: value for name, value in entry.items() if not keeps_password or name not in SECRETS}
        if existing is not None:  # limits that the file does not have stay
            prepared["limits"] = {**existing.entry["limits"], **entry["limits"]}
        return prepared

    def comparable(self, entry: Entry) -> Entry:
        return {**super().comparable(entry), "tags": sorted(entry["tags"])}

    def check_change(self, entry: Entry, existing: Existing) -> None:
        _check_not_declared(existing)

    def calls(self, entry: Entry, existing: Existing | None, known: Known) -> list[Call]:
        given: Row = {name: entry[name] for name in SECRETS if name in entry}
        if given.get("password_hash") == "":
            del given["hashing_algorithm"]
            given.pop("scram_keys", None)
        found = {"name": entry["name"], "tags": entry["tags"]}
        if existing is None or given:
            calls = [Call("users.set", {**found, **given})]
        else:
            calls = [Call("users.change", found)]
        known_limits = {} if existing is None else existing.entry["limits"]
        return calls + [
            Call("user_limits.set", {"user": entry["name"], "name": name, "value": value})
            for name, value in entry["limits"].items()
            if known_limits.get(name) != value
        ]


class Vhosts(Section[items.Vhost]):
    name = "vhosts"
    noun = "vhost"
    list_call = "vhosts.list"
    set_call = "vhosts.add"
    identity = ("name",)
    item = items.Vhost
    in_vhost = False
    in_vhost_file = False

    def entry_of(self, row: Row) -> Entry:
        metadata = {name: row[name] for name in _METADATA}
        settings = {name: row[name] for name, default in _SETTINGS.items() if row[name] != default}
        return {"name": row["name"], **metadata, **settings, "metadata": metadata}

    def existing(self, row: Row) -> Existing:
        """Return a vhost with its tracing, which imports switch but exports omit."""
        settings = {name: row[name] for name in _SETTINGS}
        return Existing({**self.entry_of(row), **settings, _TRACING: row[_TRACING]}, row["source"])

    def entry_of_item(self, item: items.Vhost) -> Entry:
        inner = item.metadata or items.VhostMetadata()
        entry: Entry = {"name": item.name}
        description = inner.description if item.description is None else item.description
        if description is not None:
            entry["description"] = description
        tags = inner.tags if item.tags is None else item.tags
        if tags is not None:
            entry["tags"] = list(parse_tags(tags))
        queue_type = inner.default_queue_type if item.default_queue_type is None else item.default_queue_type
        if queue_type not in _UNDEFINED:
            entry["default_queue_type"] = queue_type
        protected = inner.protected_from_deletion if item.protected_from_deletion is None else item.protected_from_deletion
        if protected is not None:
            entry["protected_from_deletion"] = protected
        for name in (*_SETTINGS, _TRACING):
            if (value := getattr(item, name)) is not None:
                entry[name] = value
        return entry

    def comparable(self, entry: Entry) -> Entry:
        return {name: value for name, value in super().comparable(entry).items() if name != "metadata"}

    def check_change(self, entry: Entry, existing: Existing) -> None:
        if self._changes_properties(entry, existing):
            _check_not_declared(existing)

    def _changes_properties(self, entry: Entry, existing: Existing) -> bool:
        """Return whether anything but the tracing changes, which the configuration does not have."""
        return self.difference(entry, existing)[1].keys() != {_TRACING}

    def calls(self, entry: Entry, existing: Existing | None, known: Known) -> list[Call]:
        properties = {name: value for name, value in entry.items() if name != _TRACING}
        calls = []
        if existing is None:
            calls.append(Call("vhosts.add", properties))
        elif self._changes_properties(entry, existing):
            calls.append(Call("vhosts.change", properties))
        traced = existing is not None and existing.entry.get(_TRACING, False)
        if entry.get(_TRACING, traced) != traced:
            calls.append(Call("vhosts.trace", {"name": entry["name"], "on": entry[_TRACING]}))
        return calls


class _OfUser(Section[ItemT]):
    in_vhost_file = False
    needs = ("users",)

    def check(self, entry: Entry, known: Known) -> None:
        super().check(entry, known)
        if known.find(USERS.name, entry["user"]) is None:
            raise Refused(f"user '{entry['user']}' does not exist, and the file does not have it")

    def check_change(self, entry: Entry, existing: Existing) -> None:
        _check_not_declared(existing)


class Permissions(_OfUser[items.Permission]):
    name = "permissions"
    noun = "permissions"
    list_call = "permissions.list"
    set_call = "permissions.set"
    identity = ("user", "vhost")
    item = items.Permission
    fields = ("user", "vhost", "configure", "write", "read")

    def label(self, entry: Entry) -> str:
        return f"permissions of user '{entry['user']}' in vhost '{entry['vhost']}'"


class TopicPermissions(_OfUser[items.TopicPermission]):
    name = "topic_permissions"
    noun = "topic permissions"
    list_call = "topic_permissions.list"
    set_call = "topic_permissions.set"
    identity = ("user", "vhost", "exchange")
    item = items.TopicPermission
    fields = ("user", "vhost", "exchange", "write", "read")

    def label(self, entry: Entry) -> str:
        return f"topic permissions of user '{entry['user']}' for exchange '{entry['exchange']}' in vhost '{entry['vhost']}'"


class Parameters(Section[items.Parameter]):
    name = "parameters"
    noun = "parameter"
    list_call = "parameters.list"
    set_call = "parameters.set"
    identity = ("vhost", "component", "name")
    item = items.Parameter
    fields = ("vhost", "component", "name", "value")
    needs = ("users",)

    def entry_of(self, row: Row) -> Entry:
        """Return the entry of a row, with the user with whose permissions a shovel acts."""
        entry = super().entry_of(row)
        return {**entry, "user": row["user"]} if "user" in row else entry

    def entry_of_item(self, item: items.Parameter) -> Entry:
        return {**_given(item), "value": item.value}

    def prepared(self, entry: Entry, existing: Existing | None, known: Known) -> Entry:
        if not self.note(entry, known):
            return entry
        return {name: value for name, value in entry.items() if name != "user"}

    def note(self, entry: Entry, known: Known) -> str:
        """Say that a shovel changes its user: one that does not exist, such as a deleted user, cannot run it."""
        user = entry.get("user")
        if not user or known.find(USERS.name, user) is not None:
            return ""
        return f"user '{user}' does not exist; the shovel acts for the one who imports it"

    def label(self, entry: Entry) -> str:
        return f"parameter '{entry['name']}' of component '{entry['component']}' in vhost '{entry['vhost']}'"


class GlobalParameters(Section[items.GlobalParameter]):
    name = "global_parameters"
    noun = "global parameter"
    list_call = "global_parameters.list"
    set_call = "global_parameters.set"
    identity = ("name",)
    item = items.GlobalParameter
    fields = ("name", "value")
    in_vhost = False
    in_vhost_file = False

    def entry_of_item(self, item: items.GlobalParameter) -> Entry:
        return {"name": item.name, "value": item.value}

    def is_exported(self, row: Row) -> bool:
        return not row["name"].startswith(_INTERNAL)


class Policies(Section[items.Policy]):
    name = "policies"
    noun = "policy"
    list_call = "policies.list"
    set_call = "policies.set"
    identity = ("vhost", "name")
    item = items.Policy
    fields = ("vhost", "name", "pattern", "apply-to", "definition", "priority")

    def entry_of_item(self, item: items.Policy) -> Entry:
        return {"apply-to": "all", "priority": 0, **_given(item)}


class _Declared(Section[ItemT]):
    """Objects that clients declare, with arguments whose types JSON may lack. The widths of numbers do not matter."""

    def list_arguments(self, vhost: str | None) -> Row:
        return {**super().list_arguments(vhost), ENCODED: True}

    def entry_of(self, row: Row) -> Entry:
        entry = super().entry_of(row)
        return {**entry, ENCODED: row[ENCODED]} if special_values(row.get(ENCODED, "")) else entry

    def comparable(self, entry: Entry) -> Entry:
        found = super().comparable(entry)
        special = special_values(found.pop(ENCODED, ""))
        return {**found, ENCODED: special} if special else found

    def check_change(self, entry: Entry, existing: Existing) -> None:
        raise Skipped("it exists with other properties, which cannot be changed")


class Exchanges(_Declared[items.Exchange]):
    name = "exchanges"
    noun = "exchange"
    list_call = "exchanges.list"
    set_call = "exchanges.add"
    identity = ("vhost", "name")
    item = items.Exchange
    fields = ("vhost", "name", "type", "durable", "auto_delete", "internal", "arguments")

    def is_exported(self, row: Row) -> bool:
        return row["name"] not in ("", _CONTROL) and not row["name"].startswith(RESERVED)

    def entry_of_item(self, item: items.Exchange) -> Entry:
        return _with_arguments(_given(item), item)

    def check(self, entry: Entry, known: Known) -> None:
        super().check(entry, known)
        if entry["name"] == "":
            raise Skipped("the default exchange always exists")
        _check_unreserved(entry["name"])


class Queues(_Declared[items.Queue]):
    name = "queues"
    noun = "queue"
    list_call = "queues.list"
    set_call = "queues.add"
    identity = ("vhost", "name")
    item = items.Queue
    fields = ("vhost", "name", "type", "durable", "auto_delete", "arguments")

    def is_exported(self, row: Row) -> bool:
        """Exclude exclusive queues, queues that AMQP 1.0 links own, and server-named queues."""
        is_owned = row["exclusive"] or (row["temporary"] and not row["auto_delete"])
        return not is_owned and not row["name"].startswith(RESERVED)

    def entry_of_item(self, item: items.Queue) -> Entry:
        entry = _with_arguments(_given(item), item)
        queue_type = entry.get("arguments", {}).get(QUEUE_TYPE)
        return entry if queue_type is None else {**entry, "type": queue_type}

    def comparable(self, entry: Entry) -> Entry:
        """Compare the type, whether an argument or the vhost's default has chosen it."""
        found = super().comparable(entry)
        if "arguments" in found:
            found["arguments"] = {name: value for name, value in found["arguments"].items() if name != QUEUE_TYPE}
        return found

    def check(self, entry: Entry, known: Known) -> None:
        super().check(entry, known)
        _check_unreserved(entry["name"])

    def calls(self, entry: Entry, existing: Existing | None, known: Known) -> list[Call]:
        request = {name: value for name, value in entry.items() if name != "type"}
        arguments = entry.get("arguments", {})
        queue_type = entry.get("type")
        if queue_type is not None and QUEUE_TYPE not in arguments:
            vhost = known.find(VHOSTS.name, entry["vhost"])
            default = CLASSIC if vhost is None else vhost.entry.get("default_queue_type", CLASSIC)
            if (queue_type, default) != (CLASSIC, CLASSIC):
                request["arguments"] = {**arguments, QUEUE_TYPE: queue_type}
                if ENCODED in request:
                    request[ENCODED] = _with_text(request[ENCODED], QUEUE_TYPE, queue_type)
        return [Call(self.set_call, request)]


class Bindings(Section[items.Binding]):
    name = "bindings"
    noun = "binding"
    list_call = "bindings.list"
    set_call = "bindings.add"
    identity = ("vhost", "source", "destination", "destination_type", "routing_key", "arguments")
    item = items.Binding
    needs = ("exchanges", "queues")

    def entry_of(self, row: Row) -> Entry:
        return {
            "source": row["source"],
            "vhost": row["vhost"],
            "destination": row["destination"],
            "destination_type": row["kind"],
            "routing_key": row["routing_key"],
            "arguments": row["arguments"],
            **({ENCODED: row[ENCODED]} if ENCODED in row else {}),
        }

    def entry_of_item(self, item: items.Binding) -> Entry:
        return {"arguments": {}, **_with_arguments({"routing_key": "", **_given(item)}, item)}

    def key(self, entry: Entry) -> Key:
        """Return the identity. The broker distinguishes values that are equal in JSON, but not the widths of numbers."""
        arguments = json.dumps(entry["arguments"], sort_keys=True) if entry["arguments"] else ""
        return (*(entry[name] for name in self.identity[:-1]), arguments + special_values(entry.get(ENCODED, "")))

    def comparable(self, entry: Entry) -> Entry:
        return {name: value for name, value in super().comparable(entry).items() if name != ENCODED}

    def label(self, entry: Entry) -> str:
        return (
            f"binding '{entry['routing_key']}' of {entry['destination_type']} '{entry['destination']}' to exchange"
            f" '{entry['source']}' in vhost '{entry['vhost']}'"
        )

    def check(self, entry: Entry, known: Known) -> None:
        """Skip bindings of objects that are not there: RabbitMQ exports bindings of exclusive queues."""
        super().check(entry, known)
        vhost, source, destination = entry["vhost"], entry["source"], entry["destination"]
        if self.key(entry) == (vhost, "", destination, "queue", destination, ""):
            raise Skipped("the default exchange is bound to every queue")
        # A vhost that the import adds has predeclared exchanges.
        if source and known.find(EXCHANGES.name, vhost, source) is None and not source.startswith(RESERVED):
            raise Skipped(f"exchange '{source}' does not exist, and the file does not have it")
        section = QUEUES.name if entry["destination_type"] == "queue" else EXCHANGES.name
        if known.find(section, vhost, destination) is None:
            raise Skipped(f"{entry['destination_type']} '{destination}' does not exist, and the import does not declare it")

    def calls(self, entry: Entry, existing: Existing | None, known: Known) -> list[Call]:
        request = {name: value for name, value in entry.items() if name != "destination_type"}
        return [Call(self.set_call, {**request, "kind": entry["destination_type"], "default": True})]


USERS: Final = Users()
VHOSTS: Final = Vhosts()
PERMISSIONS: Final = Permissions()
EXCHANGES: Final = Exchanges()
QUEUES: Final = Queues()
BINDINGS: Final = Bindings()
# In the order of imports: objects follow those that they refer to, and policies precede the queues that they apply to.
SECTIONS: Final[tuple[Section[Any], ...]] = (
    USERS,
    VHOSTS,
    PERMISSIONS,
    EXCHANGES,
    TopicPermissions(),
    GlobalParameters(),
    Policies(),
    Parameters(),
    QUEUES,
    BINDINGS,
)


def _given(item: items.Item) -> Entry:
    """Return the keys of an object of a file that have a value."""
    pairs = zip(item.__struct_encode_fields__, item.__struct_fields__, strict=True)
    return {name: value for name, field in pairs if (value := getattr(item, field)) is not None}


def _table(value: Mapping[str, Any] | Iterable[Any] | None, name: str) -> Row:
    """Return a table, which RabbitMQ has also written as an empty list."""
    if not value:
        return {}
    if not isinstance(value, dict):
        raise Refused(f"invalid value of '{name}'; expected an object")
    return value


def _with_arguments(entry: Entry, item: items.Exchange | items.Queue | items.Binding) -> Entry:
    """Return an entry with its arguments as a table. Raises `Refused` for invalid ones."""
    try:
        special_values(item.encoded or "")
    except ValueError:
        raise Refused(f"invalid value of '{ENCODED}'; expected fields of AMQP 0-9-1 in base64") from None
    return entry if item.arguments is None else {**entry, "arguments": _table(item.arguments, "arguments")}


def _with_text(encoded: str, name: str, value: str) -> str:
    """Return the encoded fields of arguments with another one."""
    text = value.encode()
    field = bytes((len(name),)) + name.encode() + b"S" + len(text).to_bytes(4, "big") + text
    return base64.b64encode(base64.b64decode(encoded) + field).decode()


def _check_not_declared(existing: Existing) -> None:
    if existing.source == "config":
        raise Skipped("it is declared in the configuration; change it there")


def _check_unreserved(name: str) -> None:
    if name.startswith(RESERVED):
        raise Skipped(f"names that begin with '{RESERVED}' are reserved")

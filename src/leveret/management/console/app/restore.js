// Deleted objects that the audit log describes, and the calls that declare them again.

import { call, path } from "./api.js";
import { exchangePath, plural } from "./format.js";

// What the audit log puts in place of a secret.
const HIDDEN = "(hidden)";

function bind(vhost, { source, destination, destination_type: type, routing_key, arguments: options }) {
  return call("POST", path("bindings", vhost, "e", exchangePath(source), type === "queue" ? "q" : "e", destination), { routing_key, arguments: options });
}

const setPolicy = (collection) => ({ vhost, name, before: { pattern, definition, apply_to, priority } }) =>
  call("PUT", path(collection, vhost, name), { pattern, definition, "apply-to": apply_to, priority });

const KINDS = {
  queue: ({ vhost, name, before: { durable, auto_delete, arguments: options } }) =>
    call("PUT", path("queues", vhost, name), { durable, auto_delete, arguments: options }),
  exchange: ({ vhost, name, before: { type, durable, auto_delete, internal, arguments: options } }) =>
    call("PUT", path("exchanges", vhost, name), { type, durable, auto_delete, internal, arguments: options }),
  binding: ({ vhost, before }) => bind(vhost, before),
  policy: setPolicy("policies"),
  operator_policy: setPolicy("operator-policies"),
};

/** Returns whether a record is the deletion of an object that can be declared again. */
export const isRestorable = ({ kind, before, after }) => kind in KINDS && before !== null && after === null;

/** Returns why a record cannot be used, or "". */
export function obstacle({ before }) {
  if (before.omitted) {
    return `The log does not keep so large a definition: ${before.omitted}.`;
  }
  if (JSON.stringify(before).includes(HIDDEN)) {
    return "The log does not keep secrets, which are part of this definition.";
  }
  return before.exclusive ? "The queue was exclusive: it belonged to its connection." : "";
}

/** Declares a deleted object again, with its bindings. Returns what was done. Throws `ApiError`. */
export async function restore(record) {
  await KINDS[record.kind](record);
  const failures = [];
  for (const binding of record.before.bindings ?? []) {
    try {
      await bind(record.vhost, binding);
    } catch (error) {
      failures.push(error.message);
    }
  }
  const done = `Restored ${record.kind.replace("_", " ")} '${record.name}'`;
  return failures.length ? `${done} without ${plural(failures.length, "binding")}: ${failures.slice(0, 3).join("; ")}` : done;
}

// What lessons do at the broker: each operation is a pair of a kind and an object, as in `copies`, which has it as code.

import { call, get, named, path, withQuery } from "../api.js";
import { exchangePath } from "../format.js";

const ACKMODES = { ack: "ack_requeue_false", reject: "reject_requeue_false", requeue: "ack_requeue_true" };

const EXECUTE = {
  queue: ({ vhost, name, durable, auto_delete, arguments: given }) => call("PUT", path("queues", vhost, name), { durable, auto_delete, arguments: given }),
  exchange: ({ vhost, name, type, durable, auto_delete, internal, arguments: given }) =>
    call("PUT", path("exchanges", vhost, name), { type, durable, auto_delete, internal, arguments: given }),
  binding: ({ vhost, source, destination, routing_key: key }) => call("POST", path("bindings", vhost, "e", source, "q", destination), { routing_key: key }),
  message: ({ vhost, exchange, ...message }) => call("POST", `${path("exchanges", vhost, exchangePath(exchange))}/publish`, message),
  get: ({ vhost, queue, count, outcome }) => call("POST", `${path("queues", vhost, queue)}/get`, { count, ackmode: ACKMODES[outcome], encoding: "auto" }),
  browse: async ({ vhost, queue, offset, count }) => (await call("POST", path("leveret", "queues", vhost, queue, "messages", "search"), { offset, count })).messages,
  worker: ({ vhost, queue }) => queueNow(vhost, queue), // the learner starts it
};

/** Kinds whose results have payloads. */
export const READING = new Set(["get", "browse"]);

/** Executes operations in order, and returns their results. Throws `ApiError`. */
export async function execute(vhost, operations) {
  const results = [];
  for (const [kind, object] of operations) {
    results.push(await EXECUTE[kind]({ vhost, ...object }));
  }
  return results;
}

const COLUMNS = "name,messages_ready,messages_unacknowledged,consumers,consumer_details";

/** Returns a queue as it is now. Throws `ApiError`. */
export const queueNow = (vhost, name) => get(withQuery(path("queues", vhost, name), { columns: COLUMNS }));

/** Returns the parameters for the items of a list whose names start with a prefix. */
export function startingWith(prefix) {
  const exact = named(prefix);
  return { ...exact, name: exact.name.slice(0, -1) }; // without the end of the expression
}

/** Returns the names of the queues or exchanges of a vhost that start with a prefix. Throws `ApiError`. */
export async function namesOf(kind, vhost, prefix) {
  const { items } = await get(withQuery(path(kind, vhost), { ...startingWith(prefix), columns: "name" }));
  return items.map(({ name }) => name);
}

/** Deletes those queues and exchanges that exist; their names start with the prefix. Throws `ApiError`. */
export async function remove(vhost, prefix, objects) {
  for (const kind of ["queues", "exchanges"]) {
    for (const name of await namesOf(kind, vhost, prefix)) {
      if (objects[kind].includes(name)) {
        await call("DELETE", path(kind, vhost, name)).catch(ignoreMissing);
      }
    }
  }
}

/** An exchange is deleted with its last binding, and a queue that expires at any time. */
function ignoreMissing(error) {
  if (!error.missing) {
    throw error;
  }
}

// The rights of the signed-in user for queues and exchanges.

import { call, path } from "../api.js";
import { useResource } from "../data.js";
import { exchangePath } from "../format.js";
import { html } from "../html.js";
import { hasRoles, includesRole, isReadOnly } from "../session.js";
import { Note } from "./parts.js";

// Names of one request.
const MAX_NAMES = 500;

/**
 * Returns the function `may(role, permission)` of rights that the API has answered: whether the user may request what needs this
 * role of a user with roles, and this permission of others. `changes` is false for what read-only users may do, too.
 */
function mayWith(rights) {
  const allows = (role, permission) => (hasRoles() ? includesRole(rights?.role, role) : rights?.permissions.includes(permission)) ?? false;
  return (role, permission, { changes = true } = {}) => !(changes && isReadOnly()) && allows(role, permission);
}

/** Returns `may` for a queue or exchange. `may.isKnown` is false until the API has answered. */
export function useRole({ vhost, name }) {
  const { value } = useResource(path("leveret", "role", vhost, exchangePath(name)), { slow: true });
  return Object.assign(mayWith(value), { isKnown: value !== undefined });
}

/** Returns the function `may(name, role, permission)` for queues and exchanges of a vhost. Throws `ApiError`. */
export async function readRoles(vhost, names, options) {
  const found = new Map();
  for (let at = 0; at < names.length; at += MAX_NAMES) {
    const part = names.slice(at, at + MAX_NAMES);
    const rights = await call("POST", path("leveret", "role", vhost), { names: part.map(exchangePath) }, options);
    part.forEach((name, index) => found.set(name, rights[index]));
  }
  return (name, role, permission) => mayWith(found.get(name))(role, permission);
}

/** Returns what `readRoles` does, as current as a view; nothing is allowed until the API has answered. */
export function useRoles(vhost, names) {
  const { value, error } = useResource(names.length ? JSON.stringify([vhost, names]) : null, {
    slow: true,
    readPath: (target, options) => readRoles(...JSON.parse(target), options),
  });
  const may = (...wanted) => value?.(...wanted) ?? false;
  return Object.assign(may, { isKnown: Boolean(value ?? error) });
}

/** What decides for the user about queues and exchanges. */
export const rightNoun = () => (hasRoles() ? "role" : "permission");

/** A tab that needs a right, once the rights are known. */
export const Allowed = ({ may, allowed, children }) =>
  allowed ? children : may.isKnown && html`<${Note}>Your user lacks the ${rightNoun()} for this tab.<//>`;

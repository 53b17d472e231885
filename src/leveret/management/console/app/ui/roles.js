// The rights of the signed-in user for one queue or exchange.

import { path } from "../api.js";
import { useResource } from "../data.js";
import { exchangePath } from "../format.js";
import { html } from "../html.js";
import { hasRoles, includesRole, isReadOnly } from "../session.js";
import { Note } from "./parts.js";

/**
 * Returns the function `may(role, permission)` for a queue or exchange: whether the user may request what needs this role of a
 * user with roles, and this permission of others. `changes` is false for what read-only users may do, too. `may.isKnown` is false
 * until the API has answered.
 */
export function useRole({ vhost, name }) {
  const { value } = useResource(path("leveret", "role", vhost, exchangePath(name)), { slow: true });
  const allows = (role, permission) => (hasRoles() ? includesRole(value?.role, role) : value?.permissions.includes(permission)) ?? false;
  const may = (role, permission, { changes = true } = {}) => !(changes && isReadOnly()) && allows(role, permission);
  return Object.assign(may, { isKnown: value !== undefined });
}

/** A tab that needs a right, once the rights are known. */
export const Allowed = ({ may, allowed, children }) =>
  allowed ? children : may.isKnown && html`<${Note}>Your user lacks the ${hasRoles() ? "role" : "permission"} for this tab.<//>`;

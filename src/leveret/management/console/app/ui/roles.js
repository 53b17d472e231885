// The roles of the signed-in user for one queue or exchange.

import { path } from "../api.js";
import { useResource } from "../data.js";
import { exchangePath } from "../format.js";
import { hasRoles, includesRole } from "../session.js";

/** Returns the function `may(role)` for a queue or exchange. A user without roles may what the permissions allow. */
export function useRole({ vhost, name }) {
  const { value } = useResource(hasRoles() ? path("leveret", "role", vhost, exchangePath(name)) : null, { slow: true });
  return (role) => !hasRoles() || includesRole(value?.role, role);
}

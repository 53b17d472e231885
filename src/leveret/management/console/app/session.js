// The signed-in user. The session is a cookie that scripts cannot read; all tabs of the browser share it.

import { ApiError, abandonRequests, allowRequests, call, get, whenSignedOut } from "./api.js";
import { signal } from "./html.js";
import { beginSignIn, endSignIn, finishSignIn } from "./provider.js";

export const SESSION = "/leveret/session";

/** The user: `{name, tags, grants, vhosts, policy_vhosts}`; null while the sign-in form is shown, undefined until the first check ends. */
export const user = signal(undefined);
/** Why the sign-in form is shown; "" if there is nothing to say. */
export const notice = signal("");
/** The ways to sign in: `{password, providers}`, each with its `label`. */
export const ways = signal({ password: true, providers: [] });

const channel = new BroadcastChannel(`leveret-session ${location.pathname}`);

export const isReadOnly = () => user.value?.tags.includes("read-only") ?? false;
export const mayReadPayloads = () => !(user.value?.tags.includes("no-payloads") ?? false);
export const isAdministrator = () => user.value?.tags.includes("administrator") ?? false;
export const isMonitor = () => isAdministrator() || (user.value?.tags.includes("monitoring") ?? false);
export const isPolicymaker = () => isAdministrator() || (user.value?.tags.includes("policymaker") ?? false);

// The roles, each of which includes those before it.
const ROLES = ["observer", "viewer", "operator", "policymaker", "administrator"];
const grants = () => user.value?.grants ?? [];

/** Whether the user has roles, which have the place of permissions. */
export const hasRoles = () => grants().length > 0;
/** Whether a role is another one or includes it. */
export const includesRole = (role, wanted) => ROLES.indexOf(role) >= ROLES.indexOf(wanted);
/** The vhosts in which the user has permissions or roles. */
export const ownVhosts = () => user.value?.vhosts ?? [];
/** Whether the user may change objects of a vhost. */
export const mayUse = (vhost) => isAdministrator() || ownVhosts().includes(vhost);
/** Whether the user may have a role for some queue or exchange, or permissions, to change it. */
export const mayChangeSome = (wanted) => !isReadOnly() && ownVhosts().length > 0 && (!hasRoles() || grants().some(({ role }) => includesRole(role, wanted)));
/** Whether the user may declare queues and exchanges in some vhost. */
export const mayDeclare = () => mayChangeSome("administrator");
/** Whether the user may change what is for administrators. */
export const mayAdminister = () => isAdministrator() && !isReadOnly();
/** Whether the user may change objects of a vhost that are for policymakers, or those of all vhosts (null). */
export const mayChangeIn = (vhost) => isPolicymaker() && !isReadOnly() && mayUse(vhost);
/** Whether the user may set policies in a vhost, or in some vhost. */
export const maySetPoliciesIn = (vhost) => !isReadOnly() && (isAdministrator() || (user.value?.policy_vhosts ?? []).includes(vhost));
export const maySetPolicies = () => mayAdminister() || ownVhosts().some(maySetPoliciesIn);
/** Whether the user may set alert rules, payload schemas and the like in some vhost. */
export const mayMakeRules = () => mayAdminister() || ownVhosts().some(mayChangeIn);

function opened(found) {
  allowRequests();
  whenSignedOut((error) => closed(error.message));
  notice.value = "";
  user.value = found;
}

/** Takes over the tags, roles and vhosts of the user as they are now. */
export function update(found) {
  if (found && JSON.stringify(found) !== JSON.stringify(user.value)) {
    user.value = found;
  }
}

function closed(text) {
  whenSignedOut(() => {});
  notice.value = text;
  user.value = null;
}

async function open(credentials) {
  whenSignedOut(() => {});
  const { user: found } = await call("POST", SESSION, credentials, { anonymous: true });
  opened(found);
}

/** Signs in. Throws `ApiError` if the API refuses the credentials. */
export const signIn = (username, password) => open({ username, password });

/** Goes to a provider's page, which comes back to this one. */
export const signInAtProvider = beginSignIn;

/** Signs out in all tabs, and at the provider. */
export async function signOut() {
  abandonRequests();
  // Before the session ends: the API refuses later requests of the other tabs.
  channel.postMessage("closed");
  try {
    // Also if the page is left at once.
    await call("DELETE", SESSION, undefined, { anonymous: true, keepalive: true });
  } catch (error) {
    if (!(error instanceof ApiError)) {
      throw error;
    }
  }
  closed("");
  await endSignIn(ways.value.providers);
}

/** Continues the session of the browser or the sign-in at the provider, if there is one. */
export async function resume() {
  try {
    const found = await get("/auth");
    const providers = found.oauth_enabled ? await get("/leveret/providers") : [];
    ways.value = { password: !found.oauth_disable_basic_auth, providers };
    if (providers.length > 0) {
      const credentials = await finishSignIn(providers);
      if (credentials) {
        await open(credentials);
        return;
      }
    }
    const { user: current } = await get(SESSION);
    if (current) {
      opened(current);
    } else {
      closed("");
    }
  } catch (error) {
    closed(error.message);
  }
}

channel.addEventListener("message", ({ data }) => {
  if (data === "closed" && user.value !== undefined) {
    abandonRequests();
    closed("You signed out in another tab.");
  }
});

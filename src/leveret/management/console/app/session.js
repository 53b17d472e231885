// The signed-in user. Credentials live as long as the browser tab; a new tab of the same browser asks the others for them.

import { ApiError, authorize, get } from "./api.js";
import { signal } from "./html.js";

const KEY = "leveret.authorization";
// Milliseconds in which another tab may answer.
const HANDOVER_TIMEOUT = 150;

/** The user: `{name, tags}`; null while the sign-in form is shown, undefined until the first check ends. */
export const user = signal(undefined);
/** Why the sign-in form is shown; "" if there is nothing to say. */
export const notice = signal("");

const channel = new BroadcastChannel(`leveret-session ${location.pathname}`);
let header = "";

export const isAdministrator = () => user.value?.tags.includes("administrator") ?? false;
export const isMonitor = () => isAdministrator() || (user.value?.tags.includes("monitoring") ?? false);
export const isPolicymaker = () => isAdministrator() || (user.value?.tags.includes("policymaker") ?? false);

function encode(name, password) {
  const bytes = new TextEncoder().encode(`${name}:${password}`);
  return `Basic ${btoa(String.fromCharCode(...bytes))}`;
}

async function open(value) {
  authorize(value, () => {});
  const found = await get("/whoami");
  authorize(value, (error) => close(error.message));
  header = value;
  sessionStorage.setItem(KEY, value);
  notice.value = "";
  user.value = found;
}

function close(text) {
  header = "";
  authorize("", () => {});
  sessionStorage.removeItem(KEY);
  notice.value = text;
  user.value = null;
}

/** Signs in. Throws `ApiError` if the API refuses the credentials. */
export const signIn = (name, password) => open(encode(name, password));

/** Signs out in all tabs. */
export function signOut() {
  channel.postMessage({ kind: "closed" });
  close("");
}

/** Signs in with the credentials of this tab or of another one, if there are any. */
export async function resume() {
  const known = sessionStorage.getItem(KEY) ?? (await ask());
  if (!known) {
    user.value = null;
    return;
  }
  try {
    await open(known);
  } catch (error) {
    close(error instanceof ApiError && error.status !== 401 ? error.message : "");
  }
}

function ask() {
  return new Promise((resolve) => {
    const listen = ({ data }) => {
      if (data.kind === "opened") {
        finish(data.header);
      }
    };
    const timer = setTimeout(() => finish(null), HANDOVER_TIMEOUT);
    function finish(value) {
      clearTimeout(timer);
      channel.removeEventListener("message", listen);
      resolve(value);
    }
    channel.addEventListener("message", listen);
    channel.postMessage({ kind: "asked" });
  });
}

channel.addEventListener("message", ({ data }) => {
  if (data.kind === "asked" && header) {
    channel.postMessage({ kind: "opened", header });
  } else if (data.kind === "closed" && header) {
    close("You signed out in another tab.");
  }
});

// Locations in the console: the hash of the URL holds the view, its object and its filters, so that every state has a link.

import { signal } from "./html.js";

/** The location: `{parts, query}`; `#/queues/%2F/orders?range=3600` is `{parts: ["queues", "/", "orders"], query: {range: "3600"}}`. */
export const route = signal(parse(location.hash));

function parse(hash) {
  const [target, text = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const parts = target.split("/").filter(Boolean).map(decode);
  return { parts: parts.length ? parts : ["overview"], query: Object.fromEntries(new URLSearchParams(text)) };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Returns the link to a location: `link(["queues", vhost, name], {range: 3600})`. */
export function link(parts, query = {}) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "" && value !== false) {
      parameters.set(name, String(value));
    }
  }
  const text = parameters.toString();
  const target = parts.map((part) => encodeURIComponent(String(part).toWellFormed())).join("/");
  return `#/${target}${text ? `?${text}` : ""}`;
}

/** Goes to a location. */
export function go(parts, query) {
  location.hash = link(parts, query);
  route.value = parse(location.hash); // before the browser's event, so that the old view reads nothing more
}

/** Changes parameters of the location in place, without an entry in the history. An empty value removes a parameter. */
export function setQuery(changes) {
  const { parts, query } = parse(location.hash); // a link may have changed it since `route` did
  history.replaceState(null, "", link(parts, { ...query, ...changes }));
  route.value = parse(location.hash);
}

window.addEventListener("hashchange", () => {
  route.value = parse(location.hash);
});

// Calls of the HTTP API.

import { signal } from "./html.js";

/** The shards that are not ready, as the last answer names them; "" if all are. */
export const missingShards = signal("");

/** The time of the broker's last answer, in milliseconds since 1970, if it does not answer any more; otherwise 0. */
export const lost = signal(0);
let answered = Date.now();
// Milliseconds after which a broker that has answered no request counts as lost.
const PATIENCE = 10000;

/** The address of the API. */
export const BASE = new URL("api/", document.baseURI);

let onSignedOut = () => {};
let session = new AbortController();

/** An answer other than success, or no answer (status 0). The message is the reason that the API gives. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }

  get missing() {
    return this.status === 404;
  }
}

/** Sets the function to call when the session has ended. */
export function whenSignedOut(signedOut) {
  onSignedOut = signedOut;
}

/** Abandons all requests, because the session is about to end, and refuses others until `allowRequests`. */
export function abandonRequests() {
  session.abort();
}

/** Allows requests in a new session. */
export function allowRequests() {
  if (session.signal.aborted) {
    session = new AbortController();
  }
}

/**
 * Returns the path of an API object: `path("queues", vhost, name)`. Each part is one segment.
 *
 * Browsers resolve `..` in a URL however it is encoded, so that such a name would address another object.
 */
export function path(...parts) {
  for (const part of parts) {
    if (part === "." || part === "..") {
      throw new ApiError(0, `a browser cannot address an object named '${part}'; use the command line`);
    }
  }
  return `/${parts.map((part) => encodeURIComponent(String(part).toWellFormed())).join("/")}`;
}

/** Returns a path with parameters; those that are empty are omitted. */
export function withQuery(target, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== "" && value !== false) {
      query.set(name, String(value));
    }
  }
  const text = query.toString();
  return text ? `${target}${target.includes("?") ? "&" : "?"}${text}` : target;
}

/**
 * Sends a request and returns the response if it succeeds. Throws `ApiError`, whose `answer` is the decoded body.
 *
 * The body is JSON, or the bytes of `content`.
 * A request without a session (`anonymous`) is not abandoned with it, and one with `keepalive` not with the page.
 */
export async function send(method, target, { body, content, headers = {}, signal, anonymous = false, keepalive = false } = {}) {
  const begun = Date.now();
  const timer = setTimeout(() => {
    if (answered < begun) {
      lost.value ||= answered; // it hangs
    }
  }, PATIENCE);
  let response;
  try {
    response = await fetch(new URL(`.${target}`, BASE), {
      method,
      body: body === undefined ? content : JSON.stringify(body),
      // The header has the API neither ask the browser for a password nor take changes of other pages for the user's.
      headers: { ...headers, "x-leveret-console": "1" },
      credentials: "same-origin",
      cache: "no-store",
      keepalive,
      signal: AbortSignal.any([...(signal ? [signal] : []), ...(anonymous ? [] : [session.signal])]),
    });
  } catch (error) {
    if (signal?.aborted) {
      throw error;
    }
    if (error.name !== "AbortError") {
      lost.value ||= answered;
    }
    throw new ApiError(0, "the broker does not answer");
  } finally {
    clearTimeout(timer);
  }
  if (response.status === 502 || response.status === 504) {
    lost.value ||= answered; // a proxy answers in its place
  } else {
    answered = Date.now();
    lost.value = 0;
  }
  if (response.ok) {
    if (method === "GET" && !anonymous) {
      missingShards.value = response.headers.get("leveret-missing-shards") ?? "";
    }
    return response;
  }
  const text = await response.text();
  let reason = text;
  let kind = "";
  let answer;
  try {
    answer = JSON.parse(text);
    kind = answer.error;
    reason = typeof answer.reason === "string" ? answer.reason : JSON.stringify(answer.reason ?? answer.error);
  } catch {
    // Not an answer of the API: a proxy's page.
  }
  const error = new ApiError(response.status, reason || `the broker answers with status ${response.status}`);
  error.answer = answer;
  // The spelling "not_authorised" means that the user lacks a right.
  if (response.status === 401 && kind !== "not_authorised") {
    onSignedOut(error);
  }
  throw error;
}

/** Sends a request and returns the decoded body of an answer; the warning of one without a body, or null. */
export async function call(method, target, body, options = {}) {
  const response = await send(method, target, { ...options, body });
  const text = await response.text();
  return text ? JSON.parse(text) : response.headers.get("x-leveret-warning");
}

export const get = (target, options) => call("GET", target, undefined, options);

/** Yields the events of a stream of server-sent events with their decoded data, and their ids if they have one. */
export async function* serverEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let name = "";
  let id = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) {
      return;
    }
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("event: ")) {
        name = line.slice(7);
      } else if (line.startsWith("id: ")) {
        id = line.slice(4);
      } else if (line.startsWith("data: ")) {
        yield { name, data: JSON.parse(line.slice(6)), id };
        id = "";
      }
    }
  }
}

// Page size that `all` asks for: the largest that the API takes.
const LARGE_PAGE = 500;

/** Returns all items of a list that the API pages. */
export async function all(target, parameters = {}, limit = Infinity, options = {}) {
  const items = [];
  for (let page = 1; items.length < limit; page += 1) {
    const answer = await get(withQuery(target, { ...parameters, page, page_size: LARGE_PAGE }), options);
    items.push(...answer.items);
    if (page >= answer.page_count) {
      break;
    }
  }
  return items.slice(0, limit);
}

/** Returns a regular expression for a text. */
export const pattern = (text) => text.replace(/[\\.+*?()|[\]{}^$]/g, "\\$&");

/** Returns the parameters for the items of a list with one name. The API compares names without their case. */
export const named = (name) => ({
  page: 1,
  page_size: LARGE_PAGE,
  name: `^${pattern(name)}$`,
  use_regex: "true",
});

let routes = new Map();

/** Reads which paths the API has, so that the console shows only what the broker offers. */
export async function discover() {
  const response = await fetch(new URL("console/routes.json", document.baseURI), { credentials: "omit" });
  routes = new Map(Object.entries(await response.json()));
}

/** Returns whether the API has a path, in the notation of its table: `has("/policies/{vhost}/{name}", "PUT")`. */
export function has(template, method = "GET") {
  return routes.get(template)?.includes(method) ?? false;
}

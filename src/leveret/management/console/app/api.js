// Calls of the HTTP API.

const BASE = new URL("api/", document.baseURI);

let authorization = "";
let onSignedOut = () => {};

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

/** Sets the header `Authorization` of all calls, and the function to call when the API refuses it. */
export function authorize(header, signedOut) {
  authorization = header;
  onSignedOut = signedOut;
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

/** Sends a request and returns the response if it succeeds. Throws `ApiError`. */
export async function send(method, target, { body, headers = {}, signal } = {}) {
  let response;
  try {
    response = await fetch(new URL(`.${target}`, BASE), {
      method,
      body: body === undefined ? undefined : JSON.stringify(body),
      headers: { ...headers, authorization },
      // Credentials are in the header: the browser must neither add its own nor ask for them.
      credentials: "omit",
      cache: "no-store",
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") {
      throw error;
    }
    throw new ApiError(0, "the broker does not answer");
  }
  if (response.ok) {
    return response;
  }
  const text = await response.text();
  let reason = text;
  try {
    const answer = JSON.parse(text);
    reason = typeof answer.reason === "string" ? answer.reason : JSON.stringify(answer.reason ?? answer.error);
  } catch {
    // Not an answer of the API: a proxy's page.
  }
  const error = new ApiError(response.status, reason || `the broker answers with status ${response.status}`);
  if (response.status === 401 && response.headers.has("www-authenticate")) {
    onSignedOut(error);
  }
  throw error;
}

/** Sends a request and returns the decoded answer, or null if it has no body. */
export async function call(method, target, body, options = {}) {
  const response = await send(method, target, { ...options, body });
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

export const get = (target, options) => call("GET", target, undefined, options);

// Page size that `all` asks for: the largest that the API takes.
const LARGE_PAGE = 500;

/** Returns all items of a list that the API pages. */
export async function all(target, parameters = {}, limit = Infinity) {
  const items = [];
  for (let page = 1; items.length < limit; page += 1) {
    const answer = await get(withQuery(target, { ...parameters, page, page_size: LARGE_PAGE }));
    items.push(...answer.items);
    if (page >= answer.page_count) {
      break;
    }
  }
  return items.slice(0, limit);
}

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

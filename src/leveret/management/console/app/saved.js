// Messages that the user has saved to publish them again. They are in the storage of this browser only.

const KEY = "leveret-messages";
export const MAX_SAVED = 100;
// Characters of a payload or of the properties.
const MAX_TEXT = 256 << 10;

/** Messages to begin with. */
export const TEMPLATES = [
  { name: "JSON event", payload: '{"id": 1, "type": "created"}', properties: { content_type: "application/json", type: "created", message_id: "1" } },
  { name: "Text with headers", payload: "hello", properties: { content_type: "text/plain", headers: { tenant: "a", attempt: 1 } } },
  { name: "Expires after a minute", payload: "hello", properties: { expiration: "60000" } },
  { name: "Request with a reply queue", payload: '{"method": "ping"}', properties: { content_type: "application/json", correlation_id: "1", reply_to: "replies" } },
  {
    name: "CloudEvent",
    payload: '{"id": 1}',
    properties: {
      content_type: "application/json",
      headers: { "cloudEvents:specversion": "1.0", "cloudEvents:id": "1", "cloudEvents:source": "/console", "cloudEvents:type": "example.created" },
    },
  },
].map(({ properties, ...rest }) => ({ ...rest, base64: false, persistent: true, properties: JSON.stringify(properties, null, 2) }));

/** Returns a message of a file or of the storage with the known fields only. Throws `Error` if it is none. */
function check(item) {
  const { name, routing_key: key = "", payload, base64 = false, persistent = true, properties = "" } = item ?? {};
  const texts = [name, key, payload, properties];
  if (texts.some((text) => typeof text !== "string") || !name || texts.some((text) => text.length > MAX_TEXT)) {
    throw new Error(`not a saved message; expected the texts "name", "payload", "routing_key" and "properties" of at most ${MAX_TEXT} characters`);
  }
  return { name: name.slice(0, 100), routing_key: key, payload, base64: base64 === true, persistent: persistent !== false, properties };
}

/** Returns the saved messages by name. */
export function savedMessages() {
  try {
    return parse(localStorage.getItem(KEY) ?? "[]");
  } catch {
    return [];
  }
}

function parse(text) {
  const items = JSON.parse(text);
  if (!Array.isArray(items)) {
    throw new Error("not a file of saved messages; expected a JSON array");
  }
  return items.map(check);
}

/** Adds messages, and replaces those with the same name. Returns all. Throws `Error` if there is no room. */
function add(items) {
  const all = new Map([...savedMessages(), ...items].map((item) => [item.name, item]));
  if (all.size > MAX_SAVED) {
    throw new Error(`${all.size} saved messages; expected at most ${MAX_SAVED}: delete some`);
  }
  return store([...all.values()].sort((one, other) => (one.name < other.name ? -1 : 1)));
}

function store(items) {
  try {
    localStorage.setItem(KEY, JSON.stringify(items));
  } catch {
    throw new Error("the browser has no room for more saved messages: delete some");
  }
  return items;
}

export const saveMessage = (item) => add([check(item)]);

export const deleteMessage = (name) => store(savedMessages().filter((item) => item.name !== name));

/** Adds the messages of an exported file. */
export const importMessages = (text) => add(parse(text));

export const exportMessages = () => JSON.stringify(savedMessages(), null, 2);

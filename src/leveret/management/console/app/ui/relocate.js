// Changes of messages in their places: move, copy and replay, with a preview.

import { call, path } from "../api.js";
import { agree, count, plain, plural } from "../format.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { ChangeForm } from "./dialog.js";
import { Choice, Text, useFields } from "./form.js";

export const placePath = ({ vhost, name }, ...parts) => path("leveret", "queues", vhost, name, ...parts);

/** Returns the conditions that a location holds as JSON. */
export function conditionsIn(text) {
  try {
    const found = JSON.parse(text || "[]");
    return Array.isArray(found) ? found.filter((item) => item !== null && typeof item === "object") : [];
  } catch {
    return []; // a damaged link
  }
}

const WORDS = {
  equals: "",
  not_equals: " other than",
  less: " less than",
  less_or_equal: " of at most",
  greater: " greater than",
  greater_or_equal: " of at least",
  prefix: " beginning with",
  contains: " containing",
  regex: " matching",
};

/** Returns a condition as text: `reason rejected`, `no x-exception-message`. */
export function conditionText({ field, match = "equals", value }) {
  const name = String(field).replace(/^(death|headers)\./, "");
  return match === "missing" ? `no ${name}` : match === "exists" ? `any ${name}` : `${name}${WORDS[match] ?? ""} ${plain(value) || "(empty)"}`;
}

/** Repeats a change until all messages were looked at. Returns the sum of its counts. */
export async function relocate(target, body, options) {
  const total = { messages: 0, unroutable: 0, refused: 0, missing: 0 };
  let cursor = "";
  do {
    const result = await call("POST", target, { ...body, ...(cursor ? { cursor } : {}) }, options);
    for (const key of Object.keys(total)) {
      total[key] += result[key];
    }
    cursor = result.cursor;
  } while (cursor);
  return total;
}

/** Returns the counts of a change as a sentence. */
export function summary(done, { messages, unroutable, refused, missing }) {
  const rest = [
    unroutable && `${count(unroutable)} ${agree(unroutable, "stays", "stay")}: no queue would get them`,
    refused && `${count(refused)} ${agree(refused, "stays", "stay")}: the queue is full`,
    missing && `${count(missing)} ${agree(missing, "was", "were")} not ready any more`,
  ].filter(Boolean);
  return [`${done} ${plural(messages, "message")}`, ...rest].join("; ");
}

const TARGETS = [
  ["queue", "A queue"],
  ["exchange", "An exchange"],
  ["origin", "The queue in which each dead letter died"],
  ["origin exchange", "The exchange by which each dead letter came there"],
];
const DONE = { Move: "Moved", Copy: "Copied", Replay: "Replayed" };

/**
 * The form that moves or copies messages; "Replay" moves dead letters to where they come from.
 *
 * A move begins with a preview: how many messages the target would take now.
 */
export function Relocate({ queue, what, body, done, verb }) {
  const state = useFields({ target: verb === "Replay" ? "origin" : "queue", to: "", routing_key: "" });
  const [values] = state;
  const [preview, setPreview] = useState("");
  const isOrigin = values.target.startsWith("origin");
  const target = {
    queue: { to_queue: values.to },
    exchange: { to_exchange: values.to, ...(values.routing_key ? { routing_key: values.routing_key } : {}) },
    origin: { to_origin: true },
    "origin exchange": { to_origin_exchange: true },
  }[values.target];
  const controller = useRef(null);
  async function look() {
    const { signal } = (controller.current = new AbortController());
    setPreview("Counting…");
    try {
      setPreview(summary("Would move", await relocate(placePath(queue, "messages", "preview"), { ...body, ...target }, { signal })));
    } catch (error) {
      if (error.name !== "AbortError") {
        setPreview(error.message);
      }
    }
  }
  useEffect(() => {
    setPreview("");
    if (verb !== "Copy" && isOrigin) {
      look();
    }
    return () => controller.current?.abort(); // the preview was of another target
  }, [values.target, values.to, values.routing_key]);
  async function submit() {
    const result = await relocate(placePath(queue, "messages", verb === "Copy" ? "copy" : "move"), { ...body, ...target });
    done();
    return summary(DONE[verb], result);
  }
  return html`
    <${ChangeForm} label=${`${verb} messages`} submit=${submit}>
      <p>${verb === "Copy" ? "Copies" : "Moves"} ${what}. A message that no queue takes stays in <b>${queue.name}</b>.</p>
      <${Choice} label="Target" name="target" state=${state} options=${TARGETS} />
      ${!isOrigin && html`<${Text} label=${values.target === "queue" ? "Queue" : "Exchange"} name="to" state=${state} required=${values.target === "queue"} maxlength="255" />`}
      ${values.target === "exchange" && html`<${Text} label="Routing key" name="routing_key" state=${state} maxlength="255" hint="Empty: that of each message" />`}
      ${verb !== "Copy" && !isOrigin && html`<div><button type="button" onClick=${() => look()}>Preview</button></div>`}
      ${preview && html`<p role="status">${preview}</p>`}
    <//>
  `;
}


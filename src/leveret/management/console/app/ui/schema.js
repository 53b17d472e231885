// A payload decoded by a schema that users share. The broker's HTTP process decodes it, in a process that it can end.

import { call } from "../api.js";
import { useResource } from "../data.js";
import { toBase64 } from "../format.js";
import { html, useEffect, useState } from "../html.js";
import { link } from "../route.js";
import { Choice, useFields } from "./form.js";
import { Badge, Note } from "./parts.js";
import { MAX_DECODED, TooLarge, Values } from "./tree.js";

export const DECODE = "/leveret/decode-payload";
export const SCHEMAS = "/leveret/payload-schemas";

/** Returns the text of a header before the encoded value, "" for none. */
function framingText({ name, schema_id: id, detail }) {
  if (name === "confluent") {
    return `schema id ${id}${detail && `, message index ${detail}`}`;
  }
  return name && `single object, fingerprint ${detail}`;
}

export function BySchema({ data, message, properties, queue }) {
  const state = useFields({ name: "", type: "" });
  const [{ name, type }, set] = state;
  const { value: schemas = [] } = useResource(SCHEMAS, { slow: true });
  const [{ answer, failure }, setFound] = useState({});
  const tooLarge = data.length > MAX_DECODED;
  useEffect(() => {
    if (tooLarge) {
      return undefined;
    }
    const controller = new AbortController();
    const { content_type, type: kind, headers } = properties;
    const body = {
      payload: toBase64(data), name: name || null, message_type: type || null,
      vhost: queue.vhost, queue: queue.name, exchange: message.exchange, properties: { content_type, type: kind, headers },
    };
    call("POST", DECODE, body, { signal: controller.signal }).then(
      (found) => setFound({ answer: found }),
      (error) => error.name !== "AbortError" && setFound({ failure: error.message }),
    );
    return () => controller.abort();
  }, [data, name, type]);
  if (tooLarge) {
    return html`<${TooLarge} size=${data.length} />`;
  }
  const usable = schemas.filter(({ vhost }) => vhost === null || vhost === queue.vhost);
  // A type of another schema is not kept.
  const chosen = [state[0], (key, value) => (set(key, value), key === "name" && set("type", ""))];
  const framing = answer ? framingText(answer.framing) : "";
  return html`
    <div class="pair">
      <${Choice} label="Schema" name="name" state=${chosen} options=${[["", "the one that matches the message"], ...usable.map((schema) => [schema.name, schema.name])]} />
      ${answer?.types.length > 1 && html`<${Choice} label="Message type" name="type" state=${chosen} options=${[["", "as the message or the schema says"], ...answer.types]} />`}
    </div>
    ${answer?.name && html`<p class="muted" role="status">Decoded by <b>${answer.name}</b>${answer.type && html` as <code>${answer.type}</code>`} ${framing && html`<${Badge}>${framing}<//>`}</p>`}
    ${failure && html`<${Note} tone="bad">${failure}<//>`}
    ${answer && !answer.name && html`<${Note}>No schema matches this message${framing && `, which begins with ${framing}`}. Choose one, or add one to the <a href=${link(["payload-schemas"])}>payload schemas</a>.<//>`}
    ${answer?.error && html`<${Note} tone="warn">The payload does not match the schema: ${answer.error}<//>`}
    ${!answer && !failure && html`<p class="muted" role="status">Decoding…</p>`}
    ${answer?.rows.length > 0 && html`<${Values} rows=${answer.rows} label=${`Values of the payload, decoded by ${answer.name}`} />`}
  `;
}

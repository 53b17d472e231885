// The form that publishes a message.

import { call, path } from "../api.js";
import { exchangePath } from "../format.js";
import { html, useState } from "../html.js";
import { CopyAs } from "./copy.js";
import { ChangeForm } from "./dialog.js";
import { Area, Check, parseObject, Text, useFields } from "./form.js";
import { Note } from "./parts.js";
import { SavedMessages } from "./saved.js";

const PROPERTIES_HINT = 'JSON, for example {"content_type": "application/json", "headers": {"tenant": "a"}}';

/**
 * Args (as properties):
 *   vhost, exchange: The exchange; "" is the default one.
 *   routingKey: The initial routing key.
 *   onRoutingKey(key), onProperties(text): Follow the fields.
 *   message: A message to start from: `{payload, payload_encoding, properties}`.
 */
export function PublishForm({ vhost, exchange, routingKey = "", message, onRoutingKey, onProperties }) {
  const state = useFields({
    routing_key: routingKey,
    payload: message?.payload ?? "",
    base64: message?.payload_encoding === "base64",
    persistent: message ? message.properties?.delivery_mode === 2 : true,
    properties: message ? JSON.stringify(message.properties ?? {}, null, 2) : "",
  });
  const [outcome, setOutcome] = useState(null);
  const [values, set] = state;
  const follow = { routing_key: onRoutingKey, properties: onProperties };
  const followed = [values, (name, value) => { set(name, value); follow[name]?.(value); }];

  const body = () => ({
    routing_key: values.routing_key,
    payload: values.payload,
    payload_encoding: values.base64 ? "base64" : "string",
    properties: { ...parseObject(values.properties, "Properties"), delivery_mode: values.persistent ? 2 : 1 },
  });

  async function submit() {
    setOutcome(null);
    const { routed } = await call("POST", `${path("exchanges", vhost, exchangePath(exchange))}/publish`, body());
    setOutcome(routed);
    return "";
  }
  return html`
    <${ChangeForm} label="Publish message" stay submit=${submit}>
      ${!message && html`<${SavedMessages} values=${values} set=${followed[1]} />`}
      <${Text} label="Routing key" name="routing_key" state=${followed} maxlength="255" />
      <${Area} label="Payload" name="payload" rows="5" state=${state} />
      <div class="row">
        <${Check} label="Persistent" name="persistent" state=${state} />
        <${Check} label="Payload is base64" name="base64" state=${state} />
      </div>
      <${Area} label="Properties" name="properties" rows="2" state=${followed} hint=${PROPERTIES_HINT} />
      ${outcome === true && html`<${Note}>Published: the message reached at least one queue.<//>`}
      ${outcome === false && html`<${Note} tone="warn">Published, but no binding matches: the message reached no queue.<//>`}
    <//>
    <details>
      <summary>Copy as</summary>
      <${Copy} make=${() => ({ vhost, exchange, ...body() })} />
    </details>
  `;
}

/** The message of the form, or why it is none. */
function Copy({ make }) {
  let message;
  try {
    message = make();
  } catch (error) {
    return html`<${Note} tone="warn">${error.message}<//>`;
  }
  return html`<${CopyAs} kind="message" object=${message} />`;
}

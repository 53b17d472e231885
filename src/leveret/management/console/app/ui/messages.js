// One message, and the form that takes messages from a queue.

import { call } from "../api.js";
import { queuePath } from "../actions.js";
import { save } from "../csv.js";
import { bytes, plain, plural } from "../format.js";
import { html, useState } from "../html.js";
import { copyAs } from "./copy.js";
import { Trail } from "./dead_letters.js";
import { ChangeForm, openDialog } from "./dialog.js";
import { Choice, Text, useFields } from "./form.js";
import { Entries, Facts, Panel, toast } from "./parts.js";
import { completed, Payload } from "./payload.js";
import { PublishForm } from "./publish.js";

const MODES = [
  ["ack_requeue_false", "Take: messages are removed"],
  ["reject_requeue_false", "Reject: messages are removed or dead-lettered"],
];
const MAX_COUNT = 1000;

/** Takes messages from the head of a queue, and shows them. */
export function GetMessages({ queue, done }) {
  const state = useFields({ count: "20", mode: MODES[0][0] });
  const [values] = state;
  const [messages, setMessages] = useState([]);
  async function submit() {
    const wanted = { count: Number(values.count), ackmode: values.mode, encoding: "auto" };
    const found = await call("POST", `${queuePath(queue)}/get`, wanted);
    setMessages(found);
    done();
    return found.length ? `Took ${plural(found.length, "message")}` : "The queue has no ready message";
  }
  return html`
    <${ChangeForm} label="Take messages" tone="danger" stay submit=${submit}>
      <p>Takes messages from the head of <b>${queue.name}</b>, as a client does. This cannot be undone.</p>
      <div class="pair">
        <${Choice} label="Mode" name="mode" state=${state} options=${MODES} />
        <${Text} label="Number of messages" name="count" type="number" min="1" max=${String(MAX_COUNT)} required state=${state} />
      </div>
    <//>
    ${messages.length > 0 &&
    html`<button onClick=${() => save("messages.json", JSON.stringify(messages, null, 2), "application/json")}>Download what was taken</button>`}
  `;
}

/**
 * Args (as properties):
 *   facts: More facts, as in `Facts`.
 *   actions: More buttons.
 *   read(first, length): Reads a range of the payload, as in `Payload`.
 */
export function Message({ message, queue, facts, actions, read }) {
  const properties = Array.isArray(message.properties) ? {} : message.properties;
  const { headers = {}, ...rest } = properties;
  const withWhole = (action) => () => completed(message, read).then(action, (error) => toast(error.message, "bad"));
  const resend = withWhole((whole) =>
    openDialog("Edit and publish", () => html`
      <${PublishForm} vhost=${queue.vhost} exchange=${message.exchange} routingKey=${message.routing_key} message=${{ ...whole, properties }} />
    `),
  );
  const copy = withWhole((whole) => copyAs("message", { ...whole, vhost: queue.vhost, properties }));
  return html`
    <${Panel} title="Message" actions=${html`${actions}<button onClick=${copy}>Copy as…</button><button onClick=${resend}>Edit and publish…</button>`}>
      <div class="form">
        <${Facts}
          items=${[
            ["Exchange", message.exchange || "(default exchange)"],
            ["Routing key", html`<code>${message.routing_key}</code>`],
            ["Redelivered", message.redelivered ? "yes" : "no"],
            ["Size", bytes(message.payload_bytes)],
            ...facts,
            ...Object.entries(rest).map(([key, value]) => [key.replaceAll("_", " "), html`<code>${plain(value)}</code>`]),
          ]}
        />
        <h3>Headers</h3>
        <${Entries} object=${headers} />
        <${Trail} deaths=${headers["x-death"]} queue=${queue} />
        <${Payload} ...${{ message, properties, queue, read }} />
      </div>
    <//>
  `;
}

// The playground of a queue: publish messages, consume them, and see what happens.

import { queuePath } from "../actions.js";
import { call, path } from "../api.js";
import { plural } from "../format.js";
import { html, useState } from "../html.js";
import { refresh } from "../live.js";
import { MessageList, reader } from "../ui/browser.js";
import { Choice, Text, useFields } from "../ui/form.js";
import { Message } from "../ui/messages.js";
import { Failure, Note, Panel } from "../ui/parts.js";
import { PART } from "../ui/payload.js";
import { PublishForm } from "../ui/publish.js";

const LOOK = "look";
const MODES = [
  [LOOK, "Look: messages stay, unmarked"],
  ["ack_requeue_true", "Get and requeue: messages stay, and count as redelivered"],
  ["ack_requeue_false", "Get and acknowledge: messages are removed"],
  ["reject_requeue_false", "Get and reject: messages are removed or dead-lettered"],
];
const LABELS = { [LOOK]: "Look", ack_requeue_true: "Get and requeue", ack_requeue_false: "Get and remove", reject_requeue_false: "Get and reject" };
const REMOVING = ["ack_requeue_false", "reject_requeue_false"];
const MAX_KEPT = 500;

export const Playground = ({ queue }) => html`
  <div class="grid">
    <${Panel} title="Publish to this queue"><${PublishForm} vhost=${queue.vhost} exchange="" routingKey=${queue.name} /><//>
    <${Consume} queue=${queue} />
  </div>
`;

function Consume({ queue }) {
  const isStream = queue.type === "stream";
  const state = useFields({ mode: LOOK, count: "10", offset: "0" });
  const [{ mode, count, offset }, set] = state;
  const [messages, setMessages] = useState([]);
  const [chosen, setChosen] = useState(0);
  const [outcome, setOutcome] = useState("");
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);

  async function look() {
    const body = { offset: isStream ? Number(offset) : 0, count: Number(count), truncate: PART, encoded: true };
    const found = await call("POST", path("leveret", "queues", queue.vhost, queue.name, "messages", "search"), body);
    if (isStream && found.messages.length) {
      set("offset", String(found.messages.at(-1).id + 1));
    }
    return found.messages.map((message) => ({ ...message, read: reader(queue, message, found.queue_id) }));
  }
  async function take() {
    const keeps = !REMOVING.includes(mode);
    const found = await call("POST", `${queuePath(queue)}/get`, { count: Number(count), ackmode: mode, encoding: "auto", ...(keeps ? { truncate: PART } : {}) });
    refresh();
    return found.map((message, index) => ({ ...message, id: index + 1 }));
  }
  async function submit(event) {
    event.preventDefault();
    setBusy(true);
    setError(null);
    setOutcome("");
    try {
      const found = (await (mode === LOOK ? look() : take())).slice(0, MAX_KEPT);
      setMessages(found);
      setChosen(0);
      setOutcome(found.length ? `${LABELS[mode]}: ${plural(found.length, "message")}` : "No message is ready");
    } catch (failure) {
      setError(failure);
    }
    setBusy(false);
  }
  const message = messages[chosen];
  return html`
    <div>
      <${Panel} title="Consume from this queue">
        <form class="form" onSubmit=${submit}>
          <div class="pair">
            <${Choice} label="Mode" name="mode" state=${state} options=${isStream ? MODES.slice(0, 1) : MODES} />
            <${Text} label="Number of messages" name="count" type="number" min="1" max=${String(MAX_KEPT)} required state=${state} />
            ${isStream && html`<${Text} label="From offset" name="offset" type="number" min="0" required state=${state} />`}
          </div>
          ${REMOVING.includes(mode) && html`<${Note} tone="warn">Messages leave the queue. This cannot be undone.<//>`}
          <div class="end"><button class=${REMOVING.includes(mode) ? "danger" : "primary"} disabled=${busy}>${LABELS[mode]}</button></div>
          <${Failure} error=${error} />
          ${outcome && html`<p class="muted" role="status">${outcome}</p>`}
        </form>
        ${messages.length > 0 && html`<${MessageList} messages=${messages} chosen=${chosen} setChosen=${setChosen} selected=${new Set()} selectable=${false} />`}
      <//>
      ${message && html`<${Message} key=${`${outcome} ${message.id}`} message=${message} queue=${queue} facts=${[]} read=${message.read} />`}
    </div>
  `;
}

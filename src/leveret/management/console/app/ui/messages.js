// One message as text, JSON or bytes, and the form that takes messages from a queue.

import { call } from "../api.js";
import { queuePath } from "../actions.js";
import { save } from "../csv.js";
import { bytes, plain, plural } from "../format.js";
import { html, useEffect, useMemo, useState } from "../html.js";
import { typedRows } from "../typed.js";
import { Trail } from "./dead_letters.js";
import { ChangeForm, openDialog } from "./dialog.js";
import { Choice, Text, useFields } from "./form.js";
import { Badge, Entries, Facts, Panel } from "./parts.js";
import { PublishForm } from "./publish.js";
import { Table } from "./table.js";

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
 */
export function Message({ message, queue, facts, actions }) {
  const properties = Array.isArray(message.properties) ? {} : message.properties;
  const { headers = {}, ...rest } = properties;
  const resend = () =>
    openDialog("Edit and publish", () => html`
      <${PublishForm} vhost=${queue.vhost} exchange=${message.exchange} routingKey=${message.routing_key} message=${{ ...message, properties }} />
    `);
  return html`
    <${Panel} title="Message" actions=${html`${actions}<button onClick=${resend}>Edit and publish…</button>`}>
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
        <${Payload} message=${message} properties=${properties} />
      </div>
    <//>
  `;
}

const VIEWS = [
  ["text", "Text"],
  ["json", "JSON"],
  ["hex", "Hex"],
  ["amqp", "AMQP"],
];
// Bytes shown as hex.
const MAX_HEX = 64 << 10;

function Payload({ message, properties }) {
  const [raw] = useState(() => toBytes(message));
  const [content, setContent] = useState({ data: raw, note: "" });
  const encoding = properties.content_encoding;
  useEffect(() => {
    decompress(raw, encoding).then(setContent);
  }, [raw, encoding]);
  const { data, note } = content;
  const text = decodeText(data);
  const json = text === null ? null : prettyJson(text);
  const [view, setView] = useState(null);
  const shown = view ?? (text === null ? "hex" : json !== null ? "json" : "text");
  return html`
    <div class="toolbar">
      <h3>Payload</h3>
      <div role="group" aria-label="View of the payload">
        ${VIEWS.map(
          ([id, title]) => html`
            <button
              type="button"
              class="quiet"
              aria-pressed=${shown === id}
              disabled=${(id === "json" && json === null) || (id === "text" && text === null) || (id === "amqp" && !message.encoded)}
              onClick=${() => setView(id)}
            >
              ${title}
            </button>
          `,
        )}
      </div>
      ${note && html`<${Badge}>${note}<//>`}
      <span class="grow"></span>
      <button type="button" onClick=${() => save("payload.bin", raw, "application/octet-stream")}>Download</button>
    </div>
    ${shown === "amqp"
      ? html`<${Typed} message=${message} />`
      : html`<pre class="payload ${shown}" tabindex="0" aria-label="Payload">${shown === "hex" ? hexDump(data) : shown === "json" ? json : text}</pre>`}
  `;
}

const TYPED_COLUMNS = [
  { id: "name", title: "Name", sortable: false, cell: (row) => html`<span class="typed" style=${{ paddingLeft: `${14 * Math.min(row.depth, MAX_INDENT)}px` }} title=${row.name}>${row.name}</span>` },
  { id: "type", title: "Type", width: 150, sortable: false },
  { id: "value", title: "Value", sortable: false, cell: (row) => html`<code title=${row.value}>${row.value}</code>` },
];
const MAX_INDENT = 8;

/** The parts of a message with their AMQP types, as its publisher has sent them. */
function Typed({ message }) {
  const rows = useMemo(() => typedRows(message), [message.encoded]);
  return html`
    <${Table} label="Values with their AMQP types" columns=${TYPED_COLUMNS} total=${rows.length} row=${(index) => rows[index]} keyOf=${(row) => row.index} />
    <p class="small muted">As the publisher has sent it over AMQP ${message.protocol}.</p>
  `;
}

function toBytes({ payload, payload_encoding: encoding }) {
  return encoding === "base64"
    ? Uint8Array.from(atob(payload), (character) => character.charCodeAt(0))
    : new TextEncoder().encode(payload);
}

const FORMATS = { gzip: "gzip", "x-gzip": "gzip", deflate: "deflate" };
const MAX_DECOMPRESSED = 16 << 20;

/** Returns the content of a compressed payload. One that is damaged or expands beyond a limit is shown as it is. */
async function decompress(data, encoding) {
  const format = FORMATS[String(encoding).toLowerCase()];
  if (!format) {
    return { data, note: "" };
  }
  try {
    const reader = new Blob([data]).stream().pipeThrough(new DecompressionStream(format)).getReader();
    const chunks = [];
    let size = 0;
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      size += part.value.length;
      if (size > MAX_DECOMPRESSED) {
        await reader.cancel();
        return { data, note: `${encoding}: expands to over ${bytes(MAX_DECOMPRESSED)}` };
      }
      chunks.push(part.value);
    }
    return { data: new Uint8Array(await new Blob(chunks).arrayBuffer()), note: `${encoding}, decompressed` };
  } catch {
    return { data, note: `not valid ${encoding}` };
  }
}

function decodeText(data) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(data);
  } catch {
    return null;
  }
}

function prettyJson(text) {
  if (!/^\s*[[{]/.test(text)) {
    return null;
  }
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

/** Returns bytes as lines of offset, 16 bytes in hex, and their ASCII characters. */
function hexDump(data) {
  const lines = [];
  for (let offset = 0; offset < Math.min(data.length, MAX_HEX); offset += 16) {
    const part = [...data.subarray(offset, offset + 16)];
    const hex = part.map((byte) => byte.toString(16).padStart(2, "0"));
    const left = hex.slice(0, 8).join(" ").padEnd(23);
    const right = hex.slice(8).join(" ").padEnd(23);
    const ascii = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${offset.toString(16).padStart(8, "0")}  ${left}  ${right}  ${ascii}`);
  }
  if (data.length > MAX_HEX) {
    lines.push(`… ${bytes(data.length - MAX_HEX)} more`);
  }
  return lines.join("\n");
}

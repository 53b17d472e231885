// The payload of a message as text, JSON, a tree of values, bytes, or AMQP values. Large payloads are read in ranges.

import { save } from "../csv.js";
import { decode } from "../decoding.js";
import { has } from "../api.js";
import { bytes, count, plural, toBase64 } from "../format.js";
import { html, useEffect, useMemo, useState } from "../html.js";
import { hasRoles, mayReadPayloads } from "../session.js";
import { typedRows } from "../typed.js";
import { Badge, Note, toast } from "./parts.js";
import { BySchema, DECODE } from "./schema.js";
import { Table } from "./table.js";
import { Tree } from "./tree.js";

/** Bytes of one part of a large payload. */
export const PART = 256 << 10;
// Bytes that one request reads, and those of a payload that is shown or downloaded as a whole.
const RANGE = 1 << 20;
const MAX_WHOLE = 16 << 20;
const MAX_DOWNLOAD = 256 << 20;
// Bytes shown as hex, and characters shown as text.
const MAX_HEX = PART;
const MAX_TEXT = 512 << 10;

const VIEWS = [
  ["text", "Text"],
  ["json", "JSON"],
  ["tree", "Tree"],
  ["msgpack", "MessagePack"],
  ["cbor", "CBOR"],
  ["schema", "Schema"],
  ["hex", "Hex"],
  ["amqp", "AMQP"],
];
// Views by content type.
const TYPES = [
  [/^application\/(x-|vnd\.)?msgpack$|\+msgpack$/, "msgpack"],
  [/^application\/cbor$|\+cbor$/, "cbor"],
  [/^application\/.*(protobuf|avro)|^avro\/binary$/, "schema"],
];

/**
 * Args (as properties):
 *   queue: The queue of the message.
 *   read(first, length): Reads a range of the payload; undefined for a message that is not in a queue any more.
 */
export function Payload({ message, properties, queue, read }) {
  const [raw] = useState(() => toBytes(message));
  const [part, setPart] = useState({ first: 0, data: raw });
  const [busy, setBusy] = useState("");
  const total = message.payload_bytes;
  const isWhole = part.data.length === total;
  const encoding = isWhole ? properties.content_encoding : undefined;
  const { data, note } = useDecompressed(part.data, encoding);
  const text = useMemo(() => decodeText(data, part.first, isWhole), [data, isWhole]);
  const json = useMemo(() => (isWhole && text !== null ? prettyJson(text) : null), [text, isWhole]);
  const [view, setView] = useState(null);
  const shown = view ?? defaultView(properties.content_type, text, json, isWhole);
  const unavailable = { json: json === null, tree: json === null, text: text === null, msgpack: !isWhole, cbor: !isWhole, schema: !isWhole || !has(DECODE, "POST"), amqp: !message.encoded };

  async function run(what, action) {
    setBusy(what);
    try {
      await action();
    } catch (error) {
      toast(error.message, "bad");
    }
    setBusy("");
  }
  const whole = async (limit) => (isWhole ? part.data : readAll(read, Math.min(total, limit), (done) => setBusy(`Read ${bytes(done)} of ${bytes(total)}`)));
  const go = (first) => run("Reading…", async () => setPart({ first, data: await read(first, PART) }));

  if (total > 0 && raw.length === 0 && (!mayReadPayloads() || hasRoles())) {
    const reason = mayReadPayloads() ? "Your roles do not include viewer for this queue: you" : "Your user has the tag no-payloads and";
    return html`<h3>Payload</h3><${Note}>${reason} may not read payloads.<//>`;
  }
  return html`
    <div class="toolbar">
      <h3>Payload</h3>
      <div role="group" aria-label="View of the payload">
        ${VIEWS.map(
          ([id, title]) => html`
            <button type="button" class="quiet" aria-pressed=${shown === id} disabled=${unavailable[id]} onClick=${() => setView(id)}>${title}</button>
          `,
        )}
      </div>
      ${note && html`<${Badge}>${note}<//>`}
      <span class="grow"></span>
      <button type="button" disabled=${Boolean(busy) || (!isWhole && (!read || total > MAX_DOWNLOAD))} onClick=${() => run("Reading…", async () => save("payload.bin", await whole(MAX_DOWNLOAD), "application/octet-stream"))}>Download</button>
    </div>
    ${!isWhole &&
    html`
      <div class="toolbar" role="group" aria-label="Part of the payload">
        <span class="muted">${part.data.length ? `Bytes ${count(part.first)} to ${count(part.first + part.data.length - 1)} of ${count(total)}` : plural(total, "byte")}</span>
        ${read &&
        html`
          <button type="button" disabled=${Boolean(busy) || part.first === 0} onClick=${() => go(Math.max(0, part.first - PART))}>Previous part</button>
          <button type="button" disabled=${Boolean(busy) || part.first + part.data.length >= total} onClick=${() => go(part.first + part.data.length)}>Next part</button>
          <button type="button" disabled=${Boolean(busy) || total > MAX_WHOLE} onClick=${() => run("Reading…", async () => setPart({ first: 0, data: await whole(MAX_WHOLE) }))}>Show whole payload</button>
        `}
      </div>
    `}
    ${busy && html`<p class="small muted" role="status">${busy}</p>`}
    <${View} ...${{ shown, data, text, json, message, properties, queue }} offset=${part.first} />
  `;
}

function View({ shown, data, text, json, message, properties, queue, offset }) {
  switch (shown) {
    case "amqp":
      return html`<${Typed} message=${message} />`;
    case "tree":
      return html`<${Tree} data=${data} format="json" />`;
    case "msgpack":
    case "cbor":
      return html`<${Tree} data=${data} format=${shown} />`;
    case "schema":
      return html`<${BySchema} ...${{ data, message, properties, queue }} />`;
    default:
      return html`<pre class="payload ${shown}" tabindex="0" aria-label="Payload">${shown === "hex" ? hexDump(data, offset) : clip(shown === "json" ? json : text)}</pre>`;
  }
}

function defaultView(contentType, text, json, isWhole) {
  const type = String(contentType ?? "").split(";")[0].trim().toLowerCase();
  const found = isWhole && TYPES.find(([pattern]) => pattern.test(type));
  return found ? found[1] : text === null ? "hex" : json !== null ? "json" : "text";
}

/** Returns a message with its whole payload, to be edited. Throws `Error` if that is too large. */
export async function completed(message, read) {
  const raw = toBytes(message);
  const total = message.payload_bytes ?? raw.length;
  if (raw.length === total) {
    return message;
  }
  if (!read || total > RANGE) {
    throw new Error(`the payload has ${bytes(total)}; expected at most ${bytes(RANGE)} to edit it`);
  }
  const whole = await readAll(read, total, () => {});
  const text = decodeText(whole, 0, true);
  return text === null ? { ...message, payload: toBase64(whole), payload_encoding: "base64" } : { ...message, payload: text, payload_encoding: "string" };
}

/** Reads the first bytes of a payload in ranges. */
async function readAll(read, size, progress) {
  const whole = new Uint8Array(size);
  for (let at = 0; at < size; ) {
    const range = await read(at, Math.min(RANGE, size - at));
    if (range.length === 0) {
      throw new Error("the payload is shorter than before; read the queue again");
    }
    whole.set(range, at);
    at += range.length;
    progress(at);
  }
  return whole;
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

export const fromBase64 = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

const toBytes = ({ payload, payload_encoding: encoding }) => (encoding === "base64" ? fromBase64(payload) : new TextEncoder().encode(payload));

const FORMATS = { gzip: "gzip", "x-gzip": "gzip", deflate: "deflate" };
const MAX_DECOMPRESSED = 16 << 20;

/** Returns the content of a compressed payload. One that is damaged or expands beyond a limit stays as it is. */
function useDecompressed(data, encoding) {
  const [content, setContent] = useState(null);
  useEffect(() => {
    const controller = new AbortController();
    decompress(data, String(encoding ?? "").toLowerCase(), controller.signal).then(
      (found) => !controller.signal.aborted && setContent({ ...found, source: data }),
    );
    return () => controller.abort();
  }, [data, encoding]);
  return content?.source === data ? content : { data, note: "" };
}

async function decompress(data, encoding, signal) {
  try {
    if (encoding === "zstd") {
      return { data: await decode("zstd", data, signal), note: "zstd, decompressed" };
    }
    return FORMATS[encoding] ? await inflate(data, encoding) : { data, note: "" };
  } catch (error) {
    return { data, note: encoding === "zstd" ? `not valid zstd: ${error.message}` : `not valid ${encoding}` };
  }
}

async function inflate(data, encoding) {
  const reader = new Blob([data]).stream().pipeThrough(new DecompressionStream(FORMATS[encoding])).getReader();
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
}

/** Returns a part of a payload as text, or null if it is not UTF-8. A part may begin and end inside a character. */
function decodeText(data, first, isWhole) {
  let begin = 0;
  while (first > 0 && begin < 3 && begin < data.length && (data[begin] & 0xc0) === 0x80) {
    begin += 1;
  }
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(data.subarray(begin), { stream: !isWhole });
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

const clip = (text) => (text.length > MAX_TEXT ? `${text.slice(0, MAX_TEXT)}\n… ${plural(text.length - MAX_TEXT, "more character")}` : text);

/** Returns bytes as lines of offset, 16 bytes in hex, and their ASCII characters. */
function hexDump(data, offset) {
  const lines = [];
  for (let at = 0; at < Math.min(data.length, MAX_HEX); at += 16) {
    const part = [...data.subarray(at, at + 16)];
    const hex = part.map((byte) => byte.toString(16).padStart(2, "0"));
    const left = hex.slice(0, 8).join(" ").padEnd(23);
    const right = hex.slice(8).join(" ").padEnd(23);
    const ascii = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${(offset + at).toString(16).padStart(8, "0")}  ${left}  ${right}  ${ascii}`);
  }
  if (data.length > MAX_HEX) {
    lines.push(`… ${bytes(data.length - MAX_HEX)} more`);
  }
  return lines.join("\n");
}

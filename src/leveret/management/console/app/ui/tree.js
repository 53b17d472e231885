// A payload as a tree of values, each of which can be collapsed.

import { decode } from "../decoding.js";
import { bytes } from "../format.js";
import { html, useEffect, useState } from "../html.js";
import { Note } from "./parts.js";
import { Table } from "./table.js";

/** Bytes of a payload that is decoded. */
export const MAX_DECODED = 1 << 20;
const MAX_INDENT = 12;
const NAMES = { json: "JSON", msgpack: "MessagePack", cbor: "CBOR" };

export function Tree({ data, format }) {
  const [state, setState] = useState({ rows: null, error: null });
  const tooLarge = data.length > MAX_DECODED;
  useEffect(() => {
    setState({ rows: null, error: null });
    if (tooLarge) {
      return undefined;
    }
    const controller = new AbortController();
    decode(format, data, controller.signal).then(
      (rows) => setState({ rows, error: null }),
      (error) => error.name !== "AbortError" && setState({ rows: null, error }),
    );
    return () => controller.abort();
  }, [data, format]);
  if (tooLarge) {
    return html`<${TooLarge} size=${data.length} />`;
  }
  if (state.error) {
    return html`<${Note} tone="warn">The payload is not valid ${NAMES[format]}: ${state.error.message}<//>`;
  }
  if (!state.rows) {
    return html`<p class="muted" role="status">Decoding…</p>`;
  }
  return html`<${Values} rows=${state.rows} label=${`Values of the payload, decoded as ${NAMES[format]}`} />`;
}

export const TooLarge = ({ size }) => html`<${Note}>The payload has ${bytes(size)}; payloads of up to ${bytes(MAX_DECODED)} are decoded.<//>`;

/** The rows of a decoded payload. */
export function Values({ rows: all, label }) {
  const [state, setState] = useState({ all, closed: new Set() });
  const closed = state.all === all ? state.closed : new Set();
  const setClosed = (next) => setState({ all, closed: next });
  const rows = visible(all, closed);
  const parents = all.filter((row) => row.end > row.index + 1);
  const toggle = ({ index }) => {
    const next = new Set(closed);
    if (!next.delete(index)) {
      next.add(index);
    }
    setClosed(next);
  };
  return html`
    <div class="row">
      <button type="button" class="link" disabled=${closed.size === 0} onClick=${() => setClosed(new Set())}>Expand all</button>
      <button type="button" class="link" disabled=${parents.length === 0} onClick=${() => setClosed(new Set(parents.map(({ index }) => index)))}>Collapse all</button>
    </div>
    <${Table} label=${label} columns=${columns(closed, toggle)} total=${rows.length} row=${(index) => rows[index]} keyOf=${(row) => row.index} />
  `;
}

/** Returns the rows that are not inside a collapsed one. */
function visible(rows, closed) {
  const found = [];
  for (let index = 0; index < rows.length; index = closed.has(index) ? rows[index].end : index + 1) {
    found.push(rows[index]);
  }
  return found;
}

const columns = (closed, toggle) => [
  {
    id: "name", title: "Name", sortable: false,
    cell: (row) => html`
      <span class="typed" style=${{ paddingLeft: `${14 * Math.min(row.depth, MAX_INDENT)}px` }} title=${row.name}>
        ${row.end > row.index + 1
          ? html`<button type="button" class="toggle" aria-expanded=${!closed.has(row.index)} aria-label=${`${row.name || "payload"}, ${row.type}`} onClick=${() => toggle(row)}>${closed.has(row.index) ? "▸" : "▾"}</button>`
          : html`<span class="toggle"></span>`}
        ${row.name}
      </span>
    `,
  },
  { id: "type", title: "Type", width: 110, rank: 1, sortable: false },
  { id: "value", title: "Value", sortable: false, cell: (row) => html`<code title=${row.value}>${row.value}</code>` },
];

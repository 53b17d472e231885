// Shovels.

import { deleteShovel, restartShovel } from "../actions.js";
import { count, rate } from "../format.js";
import { html } from "../html.js";
import { maySetPolicies, maySetPoliciesIn } from "../session.js";
import { ListView } from "../ui/list.js";
import { Badge, changeColumn } from "../ui/parts.js";

const PROTOCOLS = { amqp091: "0-9-1", amqp10: "1.0" };
const TONES = { running: "good", starting: "warn", terminated: "bad" };

const shovelKey = (row) => `${row.type}\n${row.vhost}\n${row.name}`;

/** The queue, the exchange with its key, or the address of an end: "src" or "dest". */
function nodeOf(row, end) {
  const exchange = row[`${end}_exchange`];
  const key = row[`${end}_exchange_key`];
  return row[`${end}_queue`] ?? row[`${end}_address`] ?? [exchange, key].filter(Boolean).join(" ");
}

const endText = (row, end) => [row[`${end}_uri`], nodeOf(row, end)].filter(Boolean).join(" · ");

/** Forwarded messages per second between the last two readings of each shovel, which the API does not keep. */
const readings = new Map();

function rateOf(row) {
  const key = shovelKey(row);
  const last = readings.get(key);
  if (last?.row === row) {
    return last.rate;
  }
  const at = Date.now();
  // A shovel that has started again counts from 0.
  const found = last && at > last.at && row.forwarded >= last.row.forwarded ? (1000 * (row.forwarded - last.row.forwarded)) / (at - last.at) : null;
  readings.set(key, { row, at, rate: found });
  return found;
}

const END = (id, title) => ({
  id,
  title,
  min: 140,
  sortable: false,
  value: (row) => endText(row, id),
  cell: (row) => html`<span title=${endText(row, id)}>${endText(row, id)}</span>`,
});

const COLUMNS = [
  { id: "name", title: "Name", min: 130, cell: (row) => html`<span title=${row.name} data-row tabindex="-1">${row.name}</span>` },
  { id: "vhost", title: "Vhost", width: 90, rank: 9 },
  { id: "type", title: "Type", width: 86, rank: 8 },
  { id: "state", title: "State", width: 104, cell: (row) => html`<${Badge} tone=${TONES[row.state]} title=${`since ${row.timestamp}`}>${row.state}<//>` },
  { id: "user", title: "User", width: 90, rank: 10 },
  END("src", "Source"),
  { ...END("dest", "Destination"), rank: 2 },
  {
    id: "protocol", title: "Protocols", width: 116, rank: 7, sortable: false,
    value: (row) => `${PROTOCOLS[row.src_protocol]} → ${PROTOCOLS[row.dest_protocol]}`,
  },
  { id: "forwarded", title: "Forwarded", width: 94, num: true, rank: 3, cell: (row) => count(row.forwarded) },
  { id: "rate", title: "Rate", width: 80, num: true, rank: 4, value: rateOf, cell: (row) => rate(rateOf(row)) },
  { id: "pending", title: "Pending", width: 80, num: true, rank: 5, cell: (row) => count(row.pending) },
  { id: "restarts", title: "Restarts", width: 84, num: true, rank: 6, cell: (row) => count(row.restarts) },
  { id: "error", title: "Last error", min: 160, rank: 1, cell: (row) => html`<span title=${row.error}>${row.error}</span>` },
];

const CHANGE = changeColumn(
  (row) => maySetPoliciesIn(row.vhost) && html`
    <button class="link" title=${`Restart shovel ${row.name}`} onClick=${() => restartShovel(row)}>Restart…</button>${" "}
    ${row.type === "dynamic" && html`<button class="link" title=${`Delete shovel ${row.name}`} onClick=${() => deleteShovel(row)}>Delete…</button>`}
  `,
);

export const ShovelsView = () => html`
  <${ListView}
    title="Shovels"
    kind="shovels"
    noun="shovel"
    paged=${false}
    columns=${maySetPolicies() ? [...COLUMNS, CHANGE] : COLUMNS}
    keyOf=${shovelKey}
    empty="No shovel matches."
  />
`;

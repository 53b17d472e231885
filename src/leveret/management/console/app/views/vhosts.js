// Vhosts.

import { addVhost, deleteVhost, editLimit, traceVhost } from "../actions.js";
import { has } from "../api.js";
import { count } from "../format.js";
import { html } from "../html.js";
import { link } from "../route.js";
import { mayAdminister } from "../session.js";
import { ListView } from "../ui/list.js";
import { changeColumn } from "../ui/parts.js";

const COLUMNS = [
  { id: "name", title: "Name", cell: (row) => html`<a href=${link(["queues"], { vhost: row.name })} title=${row.name} data-row>${row.name}</a>` },
  { id: "description", title: "Description", rank: 2 },
  { id: "default_queue_type", title: "Queue type", width: 110, rank: 3 },
  { id: "tracing", title: "Tracing", width: 90, rank: 3, cell: (row) => (row.tracing ? "on" : "") },
  { id: "messages_ready", title: "Ready", width: 110, num: true, cell: (row) => count(row.messages_ready) },
  { id: "messages_unacknowledged", title: "Unacked", width: 110, num: true, rank: 1, cell: (row) => count(row.messages_unacknowledged) },
  {
    id: "places",
    title: "Objects",
    width: 190,
    rank: 4,
    sortable: false,
    csv: false,
    cell: ({ name: vhost }) => html`
      <a href=${link(["queues"], { vhost })}>queues</a> · <a href=${link(["exchanges"], { vhost })}>exchanges</a> · <a href=${link(["map"], { vhost })}>map</a>
    `,
  },
];

const CHANGE = changeColumn(
  (row) => html`
    ${has("/vhost-limits/{vhost}/{name}", "PUT") && html`<button class="link" onClick=${() => editLimit("vhost", row.name)}>Limits…</button>`}${" "}
    ${has("/vhosts/{vhost}", "PUT") && html`<button class="link" onClick=${() => traceVhost(row)}>${row.tracing ? "Stop tracing…" : "Trace…"}</button>`}${" "}
    <button class="link" onClick=${() => deleteVhost(row)}>Delete…</button>
  `,
);

export const VhostsView = () => html`
  <${ListView}
    title="Vhosts"
    kind="vhosts"
    noun="vhost"
    vhosts=${false}
    paged=${false}
    columns=${mayAdminister() ? [...COLUMNS, CHANGE] : COLUMNS}
    keyOf=${(row) => row.name}
    actions=${mayAdminister() && html`<button class="primary" onClick=${addVhost}>Add vhost</button>`}
  />
`;

// Open transactions of all protocols, and branches of distributed transactions.

import { resolveBranch } from "../actions.js";
import { bytes, count, duration } from "../format.js";
import { html } from "../html.js";
import { link, route } from "../route.js";
import { mayAdminister } from "../session.js";
import { ListView } from "../ui/list.js";
import { Badge, changeColumn } from "../ui/parts.js";

const KINDS = { tx: "tx", dtx: "dtx", local: "coordinator" };
const TONES = { open: "", committing: "good", failed: "bad" };

const age = (row) => duration(1000 * row.age);

export const TRANSACTION_COLUMNS = [
  {
    id: "channel_name", title: "Channel or session", min: 230, sortable: false,
    cell: (row) => html`<a href=${link(["channels", row.channel_name])} title=${row.channel_name} data-row>${row.channel_name}</a>`,
  },
  { id: "user", title: "User", width: 110, rank: 4 },
  { id: "vhost", title: "Vhost", width: 90, rank: 7 },
  { id: "protocol", title: "Protocol", width: 110, rank: 5, sortable: false },
  { id: "kind", title: "Kind", width: 104, rank: 3, value: (row) => KINDS[row.kind] },
  { id: "id", title: "Id", width: 160, rank: 6, cell: (row) => html`<code title=${row.id}>${row.id}</code>` },
  { id: "state", title: "State", width: 104, rank: 1, cell: (row) => html`<${Badge} tone=${TONES[row.state]} title=${row.reason}>${row.state}<//>` },
  { id: "publishes", title: "Publishes", width: 92, num: true, rank: 1, cell: (row) => count(row.publishes) },
  { id: "settlements", title: "Settlements", width: 104, num: true, rank: 2, cell: (row) => count(row.settlements) },
  { id: "size", title: "Size", width: 88, num: true, rank: 2, cell: (row) => bytes(row.size) },
  { id: "age", title: "Age", width: 110, num: true, cell: age },
];

export const transactionKey = (row) => `${row.channel_name}\n${row.kind}\n${row.id}`;

const BRANCH_TONES = { prepared: "warn", "rollback-only": "bad", committed: "good" };
const BRANCH_COLUMNS = [
  { id: "branch", title: "Branch", min: 190, cell: (row) => html`<code title=${row.branch} data-row tabindex="-1">${row.branch}</code>` },
  { id: "user", title: "User", width: 110, rank: 5 },
  { id: "vhost", title: "Vhost", width: 90, rank: 6 },
  { id: "state", title: "State", width: 150, cell: (row) => html`<${Badge} tone=${BRANCH_TONES[row.state] ?? ""}>${row.state}<//>${row.timed_out && html` <${Badge} tone="bad">timed out<//>`}` },
  { id: "channels", title: "Channels", width: 88, num: true, rank: 4, cell: (row) => count(row.channels) },
  { id: "publishes", title: "Publishes", width: 92, num: true, rank: 2, cell: (row) => count(row.publishes) },
  { id: "settlements", title: "Settlements", width: 104, num: true, rank: 3, cell: (row) => count(row.settlements) },
  { id: "bytes", title: "Size", width: 88, num: true, rank: 3, cell: (row) => bytes(row.bytes) },
  { id: "age", title: "Age", width: 110, num: true, cell: age },
  { id: "timeout", title: "Rolled back in", width: 116, num: true, rank: 5, cell: (row) => (row.timeout === null ? "" : duration(1000 * row.timeout)) },
];
const DECIDED = new Set(["committed", "rolled back"]);
const CHANGE = changeColumn((row) =>
  DECIDED.has(row.state)
    ? html`<button class="link" onClick=${() => resolveBranch("forget", row)}>Forget…</button>`
    : html`
        <button class="link" disabled=${row.state !== "prepared"} onClick=${() => resolveBranch("commit", row)}>Commit…</button>${" "}
        <button class="link" onClick=${() => resolveBranch("rollback", row)}>Roll back…</button>
      `,
);

export function TransactionsView() {
  const branches = route.value.query.kind === "branches";
  const { vhost } = route.value.query;
  const other = html`<a class="button" href=${link(["transactions"], { vhost, kind: branches ? "" : "branches" })}>${branches ? "Open transactions" : "Branches"}</a>`;
  return branches
    ? html`
        <${ListView}
          title="Branches of distributed transactions"
          kind="leveret/branches"
          noun="branch"
          sort="branch"
          columns=${mayAdminister() ? [...BRANCH_COLUMNS, CHANGE] : BRANCH_COLUMNS}
          keyOf=${(row) => `${row.vhost}\n${row.branch}`}
          empty="No branch matches."
          actions=${other}
        />
      `
    : html`
        <${ListView}
          title="Open transactions"
          kind="leveret/transactions"
          noun="transaction"
          sort="user"
          columns=${TRANSACTION_COLUMNS}
          keyOf=${transactionKey}
          empty="No open transaction matches."
          actions=${other}
        />
      `;
}

// Progress of pipelines: named consumers of streams, leases of queues, and sinks.

import { abortSinkTransaction, releaseLease } from "../actions.js";
import { named, path, withQuery } from "../api.js";
import { useResource } from "../data.js";
import { bytes, count, duration, short } from "../format.js";
import { html } from "../html.js";
import { link, route } from "../route.js";
import { mayAdminister } from "../session.js";
import { Chart } from "../ui/chart.js";
import { ListView } from "../ui/list.js";
import { Badge, Facts, Failure, Note, Panel, QueueLink, Stats, Title, changeColumn } from "../ui/parts.js";
import { SmallTable } from "../ui/table.js";

const seconds = (value) => duration(1000 * value);
const lagTime = (row) => (row.lag_seconds === null ? "–" : seconds(row.lag_seconds));

const VHOST = { id: "vhost", title: "Vhost", width: 100, rank: 5 };
const LAG = { id: "lag", title: "Lag", width: 110, num: true, cell: (row) => count(row.lag) };
const LAG_BYTES = { id: "lag_bytes", title: "Lag size", width: 100, num: true, rank: 2, cell: (row) => bytes(row.lag_bytes) };
const LAG_SECONDS = { id: "lag_seconds", title: "Lag time", width: 110, num: true, rank: 1, cell: (row) => lagTime(row) };
const USER = { id: "user", title: "User", width: 120, rank: 4 };

const readerLink = (kind, queue, name) => (row) =>
  html`<a href=${link(["pipelines", kind, row.vhost, row[queue], row[name]])} title=${row[name]} data-row>${row[name]}</a>`;
const queueLink = (id) => (row) => html`<${QueueLink} vhost=${row.vhost} name=${row[id]} />`;

const Reading = ({ row }) => html`<${Badge} tone=${row.reading ? "good" : ""}>${row.reading ? "reading" : "idle"}<//>`;
const Readers = ({ row }) =>
  html`<${Badge} tone=${row.readers ? "good" : ""}>${row.readers ? count(row.readers) : `idle for ${seconds(row.idle)}`}<//>`;

const RELEASE = changeColumn((row) => html`<button class="link" onClick=${() => releaseLease(row)}>Release…</button>`);
const ABORT = changeColumn((row) => html`<button class="link" onClick=${() => abortSinkTransaction(row)}>Abort…</button>`);

const TABS = {
  streams: {
    title: "Stream consumers",
    kind: "leveret/stream-consumers",
    noun: "consumer",
    sort: "consumer",
    keyOf: (row) => `${row.vhost}\n${row.stream}\n${row.consumer}`,
    empty: "No consumer has stored a position in a stream.",
    lagging: true,
    columns: [
      { id: "consumer", title: "Consumer", cell: readerLink("stream", "stream", "consumer") },
      { id: "stream", title: "Stream", cell: queueLink("stream") },
      VHOST,
      LAG,
      LAG_BYTES,
      LAG_SECONDS,
      { id: "next_offset", title: "Next offset", width: 120, num: true, rank: 3, cell: (row) => count(row.next_offset) },
      { id: "reading", title: "Activity", width: 100, rank: 1, value: (row) => row.reading, cell: (row) => html`<${Reading} row=${row} />` },
    ],
  },
  leases: {
    title: "Leases",
    kind: "leveret/leases",
    noun: "lease",
    sort: "lease",
    keyOf: (row) => `${row.vhost}\n${row.queue}\n${row.lease}`,
    empty: "No reader has a lease of a queue.",
    lagging: true,
    change: RELEASE,
    columns: [
      { id: "lease", title: "Lease", cell: readerLink("lease", "queue", "lease") },
      { id: "queue", title: "Queue", cell: queueLink("queue") },
      VHOST,
      { ...LAG, sortable: false },
      { ...LAG_BYTES, rank: 3, sortable: false },
      { ...LAG_SECONDS, rank: 2, sortable: false },
      { id: "messages", title: "In batches", width: 100, num: true, rank: 2, cell: (row) => count(row.messages) },
      { id: "committed", title: "Committed batch", width: 132, num: true, rank: 3, cell: (row) => count(row.committed) },
      { id: "readers", title: "Readers", width: 140, rank: 1, cell: (row) => html`<${Readers} row=${row} />` },
    ],
  },
  sinks: {
    title: "Sinks",
    kind: "leveret/sinks",
    noun: "sink",
    sort: "app",
    keyOf: (row) => `${row.vhost}\n${row.app}`,
    empty: "No sink has committed a batch.",
    columns: [
      { id: "app", title: "Sink", cell: (row) => html`<a href=${link(["pipelines"], { tab: "transactions", name: row.app })} title=${row.app} data-row>${row.app}</a>` },
      VHOST,
      USER,
      { id: "batch", title: "Last batch", width: 110, num: true, cell: (row) => count(row.batch) },
      { id: "promoting", title: "In commit", width: 110, num: true, rank: 1, cell: (row) => (row.promoting === null ? "" : count(row.promoting)) },
      { id: "moved", title: "Messages", width: 100, num: true, rank: 2, cell: (row) => (row.moved === null ? "" : count(row.moved)) },
      { id: "waits_for", title: "Waits for", rank: 3, cell: (row) => row.waits_for && html`<${Badge} tone="warn" title=${row.waits_for}>${row.waits_for}<//>` },
    ],
  },
  transactions: {
    title: "Sink transactions",
    kind: "leveret/sink-transactions",
    noun: "transaction",
    sort: "app",
    keyOf: (row) => row.stage,
    empty: "No transaction of a sink is open.",
    change: ABORT,
    columns: [
      { id: "app", title: "Sink" },
      { id: "stage", title: "Transaction", rank: 3, cell: (row) => html`<code title=${row.stage}>${row.stage}</code>` },
      VHOST,
      USER,
      { id: "state", title: "State", width: 110, cell: (row) => html`<${Badge}>${STATES[row.state] ?? row.state}<//>` },
      { id: "messages", title: "Messages", width: 100, num: true, cell: (row) => count(row.messages) },
      { id: "bytes", title: "Size", width: 100, num: true, rank: 2, cell: (row) => bytes(row.bytes) },
      { id: "idle", title: "Idle", width: 110, num: true, rank: 1, cell: (row) => seconds(row.idle) },
    ],
  },
};
const STATES = { sealed: "prepared", promoted: "committing" };

export function PipelinesView() {
  const { tab, vhost } = route.value.query;
  const id = tab in TABS ? tab : "streams";
  const { lagging, change, columns, ...list } = TABS[id];
  const tabs = html`
    <nav class="tabs" aria-label="Parts of pipelines">
      ${Object.entries(TABS).map(
        ([key, { title }]) => html`<a key=${key} href=${link(["pipelines"], { tab: key, vhost })} aria-current=${key === id ? "page" : undefined}>${title}</a>`,
      )}
    </nav>
    ${lagging && html`<${TotalLag} key=${id} kind=${list.kind} title=${list.title} />`}
  `;
  return html`<${ListView} ...${list} columns=${change && mayAdminister() ? [...columns, change] : columns} intro=${tabs} />`;
}

const TOTAL_SERIES = [
  { key: "total", label: "Total", color: "ready", kind: "gauge", fill: true },
  { key: "largest", label: "Largest", color: "unacked", kind: "gauge" },
];
// Readers whose lag the total has.
const MAX_SUMMED = 500;

/** A chart of the lag of all readers of a kind. */
function TotalLag({ kind, title }) {
  const { vhost } = route.value.query;
  const target = vhost ? path(...kind.split("/"), vhost) : `/${kind}`;
  const { value } = useResource(withQuery(target, { page: 1, page_size: MAX_SUMMED, columns: "lag" }));
  const object = value && summed(value);
  return html`
    <${Panel} title="Lag">
      <${Chart} id=${`${target}\nlag`} label=${`Lag of ${title.toLowerCase()} over time`} object=${object} series=${TOTAL_SERIES} format=${short} />
    <//>
  `;
}

const sums = new WeakMap();

/** Returns the total and the largest lag of an answer, as one object for each answer. */
function summed(answer) {
  if (!sums.has(answer)) {
    const lags = answer.items.map(({ lag }) => lag ?? 0);
    sums.set(answer, { total: lags.reduce((sum, lag) => sum + lag, 0), largest: Math.max(0, ...lags) });
  }
  return sums.get(answer);
}

const LAG_SERIES = [{ key: "lag", label: "Lag", color: "ready", kind: "gauge", fill: true }];

/** One reader: a named consumer of a stream, or a lease of a queue. */
export function PipelineView({ parts }) {
  const [, kind, vhost, queue, name] = parts;
  const isLease = kind === "lease";
  const list = isLease ? "leases" : "stream-consumers";
  const { value, error } = useResource(withQuery(path("leveret", list, vhost), named(name)));
  const tab = isLease ? "leases" : "streams";
  const crumb = html`<a href=${link(["pipelines"], { tab })}>Pipelines</a> › <a href=${link(["pipelines"], { tab, vhost })} title=${vhost}>${vhost}</a>`;
  const found = value?.items.find((row) => row[isLease ? "queue" : "stream"] === queue && row[isLease ? "lease" : "consumer"] === name);
  if (!found) {
    return html`<${Title} crumb=${crumb} title=${name} /><${Failure} error=${error} />${value && html`<${Note}>${isLease ? "This lease was released." : "This consumer has no position in the stream."}<//>`}`;
  }
  return html`
    <${Title}
      crumb=${crumb}
      title=${name}
      badges=${isLease ? html`<${Readers} row=${found} />` : html`<${Reading} row=${found} />`}
      actions=${isLease && mayAdminister() && html`<button class="danger" onClick=${() => releaseLease(found)}>Release…</button>`}
    />
    <${Failure} error=${error} />
    <${Stats} items=${isLease ? leaseStats(found) : [...lagStats(found), ["Next offset", count(found.next_offset)]]} />
    <div class="grid">
      <${Panel} title="Lag">
        <${Chart} id=${`${parts.join("\n")}\nlag`} label="Lag of the reader over time" object=${found} series=${LAG_SERIES} format=${short} />
      <//>
      <${Panel} title=${isLease ? "Lease" : "Consumer"}>
        <${Facts} items=${[[isLease ? "Queue" : "Stream", html`<${QueueLink} vhost=${vhost} name=${queue} />`], ["Vhost", vhost], ...(isLease ? leaseFacts(found) : [])]} />
      <//>
    </div>
    ${isLease &&
    html`
      <${Panel} title="Uncommitted batches" flush>
        <${SmallTable} label="Batches" rows=${found.batches} columns=${BATCH_COLUMNS} keyOf=${(row) => row.batch} initial="batch" empty="No uncommitted batch." />
      <//>
    `}
  `;
}

const lagStats = (row) => [
  ["Lag", count(row.lag)],
  ["Lag size", bytes(row.lag_bytes)],
  ["Lag time", lagTime(row)],
];

const leaseStats = (row) => [
  ...lagStats(row),
  ["Ready", count(row.ready)],
  ["In batches", count(row.messages), bytes(row.bytes)],
  ["Committed batch", count(row.committed)],
];

const leaseFacts = (row) => [
  ["Epoch", count(row.epoch)],
  ["Acquired", `${seconds(row.age)} ago`],
  ["Expires when idle for", row.timeout !== null && seconds(row.timeout)],
];

const BATCH_COLUMNS = [
  { id: "batch", title: "Batch", width: 110, num: true, cell: (row) => count(row.batch) },
  { id: "count", title: "Messages", width: 110, num: true, cell: (row) => count(row.count) },
  { id: "bytes", title: "Size", width: 110, num: true, cell: (row) => bytes(row.bytes) },
  { id: "age", title: "Age", width: 120, num: true, rank: 1, cell: (row) => seconds(row.age) },
  { id: "read", title: "State", cell: (row) => html`<${Badge} tone=${row.read ? "good" : ""}>${row.read ? "read" : "not read"}<//>` },
];

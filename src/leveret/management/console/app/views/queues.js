// Lists of queues and streams.

import { BULK_COLUMNS, changeQueues, declareQueue, deleteQueues } from "../actions.js";
import { bytes, count, duration, growth, rate } from "../format.js";
import { html } from "../html.js";
import { mayChangeSome, mayDeclare } from "../session.js";
import { Badge, Features, QueueLink } from "../ui/parts.js";
import { ListView } from "../ui/list.js";
import { Star } from "../ui/star.js";

const keyOf = (row) => `${row.vhost}\n${row.name}`;
const stats = (row, key) => row.message_stats?.[`${key}_details`]?.rate;

export const State = ({ queue }) => html`
  <${Badge} tone=${{ running: "", idle: "", flow: "warn", paused: "warn" }[queue.state] ?? "bad"}>${queue.state}<//>
`;

const NAME = { id: "name", title: "Name", cell: (row) => html`<span class="named"><${Star} kind="queues" vhost=${row.vhost} name=${row.name} /><${QueueLink} ...${row} /></span>` };
const VHOST = { id: "vhost", title: "Vhost", width: 110, rank: 4 };
const PUBLISH = { id: "message_stats.publish_details.rate", title: "Publish", width: 90, num: true, rank: 2, value: (row) => stats(row, "publish"), cell: (row) => rate(stats(row, "publish")) };

const COLUMNS = [
  NAME,
  VHOST,
  { id: "type", title: "Type", width: 84, rank: 6 },
  { id: "features", title: "Features", width: 150, rank: 9, sortable: false, csv: false, cell: (row) => html`<span class="badges"><${Features} object=${row} /></span>` },
  { id: "policy", title: "Policy", width: 110, rank: 8 },
  { id: "state", title: "State", width: 84, rank: 5, cell: (row) => html`<${State} queue=${row} />` },
  { id: "messages_ready", title: "Ready", width: 92, num: true, rank: 3, cell: (row) => count(row.messages_ready) },
  { id: "messages_unacknowledged", title: "Unacked", width: 92, num: true, rank: 4, cell: (row) => count(row.messages_unacknowledged) },
  { id: "messages", title: "Messages", width: 96, num: true, cell: (row) => count(row.messages) },
  { id: "messages_details.rate", title: "Growth", width: 92, num: true, rank: 1, cell: (row) => growth(row.messages_details?.rate) },
  PUBLISH,
  { id: "message_stats.deliver_get_details.rate", title: "Deliver", width: 90, num: true, rank: 3, cell: (row) => rate(stats(row, "deliver_get")) },
  { id: "message_stats.ack_details.rate", title: "Ack", width: 90, num: true, rank: 5, cell: (row) => rate(stats(row, "ack")) },
  { id: "consumers", title: "Consumers", width: 94, num: true, rank: 2, cell: (row) => count(row.consumers) },
  { id: "message_bytes", title: "Bytes", width: 92, num: true, rank: 7, cell: (row) => bytes(row.message_bytes) },
  { id: "oldest_ready_age", title: "Oldest", width: 104, num: true, rank: 10, cell: (row) => (row.oldest_ready_age === null ? "" : duration(1000 * row.oldest_ready_age)) },
];

const LIST = [
  "name", "vhost", "type", "durable", "auto_delete", "exclusive", "policy", "state", "messages", "messages_ready",
  "messages_unacknowledged", "message_bytes", "consumers", "messages_details.rate", "message_stats.publish_details.rate",
  "message_stats.deliver_get_details.rate", "message_stats.ack_details.rate", "oldest_ready_age",
].join(",");

export const QueuesView = () => html`
  <${ListView}
    title="Queues"
    kind="queues"
    noun="queue"
    columns=${COLUMNS}
    keyOf=${keyOf}
    query=${{ columns: LIST }}
    empty="No queue matches."
    actions=${mayDeclare() && html`<button class="primary" onClick=${() => declareQueue("classic")}>Declare queue</button>`}
    starred="queues"
    tools=${({ read: readColumns, total }) => {
      const read = () => readColumns(BULK_COLUMNS);
      return html`
        <button disabled=${total === 0 || !mayChangeSome("operator")} onClick=${() => changeQueues(read)}>Change listed…</button>
        <button disabled=${total === 0 || !mayDeclare()} onClick=${() => deleteQueues(read)}>Delete listed…</button>
      `;
    }}
  />
`;

const STREAM_COLUMNS = [
  NAME,
  VHOST,
  { id: "messages", title: "Messages", width: 110, num: true, cell: (row) => count(row.messages) },
  { ...PUBLISH, rank: 1 },
  { id: "consumers", title: "Readers", width: 94, num: true, rank: 2, cell: (row) => count(row.consumers) },
  { id: "message_bytes", title: "Bytes", width: 100, num: true, rank: 3, cell: (row) => bytes(row.message_bytes) },
  { id: "arguments.x-max-age", title: "Max. age", width: 90, rank: 4, value: (row) => row.arguments["x-max-age"] },
  { id: "arguments.x-max-length-bytes", title: "Max. bytes", width: 100, num: true, rank: 4, value: (row) => row.arguments["x-max-length-bytes"], cell: (row) => bytes(row.arguments["x-max-length-bytes"]) },
];

export const StreamsView = () => html`
  <${ListView}
    title="Streams"
    kind="queues"
    noun="stream"
    paged=${false}
    keep=${(row) => row.type === "stream"}
    starred="queues"
    columns=${STREAM_COLUMNS}
    keyOf=${keyOf}
    query=${{ columns: "name,vhost,type,messages,consumers,message_bytes,arguments,message_stats.publish_details.rate" }}
    empty="No streams. Declare a queue of the type 'stream' to get one."
    actions=${mayDeclare() && html`<button class="primary" onClick=${() => declareQueue("stream")}>Declare stream</button>`}
  />
`;

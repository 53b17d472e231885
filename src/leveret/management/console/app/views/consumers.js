// Consumers.

import { count } from "../format.js";
import { html } from "../html.js";
import { link } from "../route.js";
import { ListView } from "../ui/list.js";
import { Badge, QueueLink } from "../ui/parts.js";

export const consumerKey = (row) => `${row.channel_details?.name}\n${row.consumer_tag}\n${row.queue?.name}`;

export const CONSUMER_COLUMNS = [
  { id: "consumer_tag", title: "Tag", cell: (row) => html`<code title=${row.consumer_tag}>${row.consumer_tag}</code>` },
  { id: "queue.name", title: "Queue", cell: (row) => html`<${QueueLink} ...${row.queue} />` },
  { id: "queue.vhost", title: "Vhost", width: 100, rank: 5 },
  {
    id: "channel_details.name",
    title: "Channel",
    rank: 3,
    cell: ({ channel_details: { name } }) => name && html`<a href=${link(["channels", name])} title=${name}>${name}</a>`,
  },
  { id: "activity_status", title: "Activity", width: 100, cell: (row) => html`<${Badge} tone=${row.active ? "good" : ""}>${row.activity_status}<//>` },
  { id: "ack_required", title: "Acks", width: 92, rank: 2, value: (row) => (row.ack_required ? "manual" : "automatic") },
  { id: "exclusive", title: "Exclusive", width: 84, rank: 4, value: (row) => (row.exclusive ? "yes" : "") },
  { id: "prefetch_count", title: "Prefetch", width: 84, num: true, rank: 4, cell: (row) => (row.prefetch_count ? count(row.prefetch_count) : "") },
];

export const ConsumersView = () => html`
  <${ListView} title="Consumers" kind="consumers" noun="consumer" paged=${false} sort="queue.name" columns=${CONSUMER_COLUMNS} keyOf=${consumerKey} empty="No consumers." />
`;

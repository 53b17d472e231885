// Channels.

import { path } from "../api.js";
import { useResource } from "../data.js";
import { count, rate } from "../format.js";
import { html } from "../html.js";
import { link } from "../route.js";
import { ListView } from "../ui/list.js";
import { Badge, ConnectionLink, Facts, Failure, Panel, Stats, Title } from "../ui/parts.js";
import { SmallTable } from "../ui/table.js";
import { CONSUMER_COLUMNS, consumerKey } from "./consumers.js";

const stats = (row, key) => row.message_stats?.[`${key}_details`]?.rate;
const modeOf = (row) => (row.confirm ? "confirm" : row.transactional ? "tx" : "");

export const CHANNEL_COLUMNS = [
  { id: "name", title: "Channel", min: 250, cell: (row) => html`<a href=${link(["channels", row.name])} title=${row.name} data-row>${row.name}</a>` },
  { id: "user", title: "User", width: 110, rank: 4 },
  { id: "vhost", title: "Vhost", width: 110, rank: 5 },
  { id: "mode", title: "Mode", width: 80, rank: 4, sortable: false, value: modeOf },
  { id: "state", title: "State", width: 88, rank: 2, cell: (row) => html`<${Badge} tone=${row.state === "running" ? "good" : "warn"}>${row.state}<//>` },
  { id: "consumer_count", title: "Consumers", width: 96, num: true, rank: 3, cell: (row) => count(row.consumer_count) },
  { id: "prefetch_count", title: "Prefetch", width: 86, num: true, rank: 3, cell: (row) => (row.prefetch_count ? count(row.prefetch_count) : "no limit") },
  { id: "messages_unacknowledged", title: "Unacked", width: 92, num: true, cell: (row) => count(row.messages_unacknowledged) },
  { id: "messages_unconfirmed", title: "Unconfirmed", width: 104, num: true, rank: 5, cell: (row) => count(row.messages_unconfirmed) },
  { id: "message_stats.publish_details.rate", title: "Publish", width: 90, num: true, rank: 1, cell: (row) => rate(stats(row, "publish")) },
  { id: "message_stats.deliver_get_details.rate", title: "Deliver", width: 90, num: true, rank: 2, cell: (row) => rate(stats(row, "deliver_get")) },
];

export const ChannelsView = () => html`
  <${ListView} title="Channels" kind="channels" noun="channel" vhosts=${false} columns=${CHANNEL_COLUMNS} keyOf=${(row) => row.name} empty="No channel matches." />
`;

export function ChannelView({ parts }) {
  const [, name] = parts;
  const { value: channel, error } = useResource(path("channels", name));
  const crumb = html`<a href=${link(["channels"])}>Channels</a>`;
  if (!channel) {
    return html`<${Title} crumb=${crumb} title=${name} /><${Failure} error=${error} />`;
  }
  const connection = channel.connection_details.name;
  return html`
    <${Title} crumb=${crumb} title=${name} badges=${html`<${Badge}>${channel.state}<//>${modeOf(channel) && html`<${Badge}>${modeOf(channel)}<//>`}`} />
    <${Failure} error=${error} />
    <${Stats}
      items=${[
        ["Unacked", count(channel.messages_unacknowledged)],
        ["Unconfirmed", count(channel.messages_unconfirmed)],
        ["Publish", rate(stats(channel, "publish"))],
        ["Deliver", rate(stats(channel, "deliver_get"))],
        ["Ack", rate(stats(channel, "ack"))],
      ]}
    />
    <${Panel} title="Channel">
      <${Facts}
        items=${[
          ["Connection", connection && html`<${ConnectionLink} name=${connection} />`],
          ["Number", String(channel.number)],
          ["User", channel.user],
          ["Vhost", channel.vhost],
          ["Prefetch", channel.prefetch_count ? count(channel.prefetch_count) : "no limit"],
        ]}
      />
    <//>
    <${Panel} title="Consumers" flush>
      <${SmallTable} label="Consumers" rows=${channel.consumer_details ?? []} columns=${CONSUMER_COLUMNS.filter(({ id }) => id !== "channel_details.name")} keyOf=${consumerKey} initial="consumer_tag" empty="No consumers." />
    <//>
  `;
}

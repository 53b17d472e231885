// Connections.

import { closeConnection } from "../actions.js";
import { path, withQuery } from "../api.js";
import { useResource } from "../data.js";
import { diagnosePublisher } from "../diagnosis.js";
import { bytes, count, time } from "../format.js";
import { html } from "../html.js";
import { link } from "../route.js";
import { Chart, historyParameters, RangeChoice, useRange } from "../ui/chart.js";
import { ListView } from "../ui/list.js";
import { Badge, ConnectionLink, Entries, Facts, Failure, Findings, Panel, Stats, Title, UserLink } from "../ui/parts.js";
import { SmallTable } from "../ui/table.js";
import { isAdministrator, isReadOnly, user } from "../session.js";
import { CHANNEL_COLUMNS } from "./channels.js";
import { LINK_COLUMNS, linkKey } from "./links.js";
import { TRANSACTION_COLUMNS, transactionKey } from "./transactions.js";

const nameOf = (row) => row.user_provided_name || row.client_properties?.connection_name || "";

export const ConnectionState = ({ state }) => html`
  <${Badge} tone=${state === "running" ? "good" : ["blocked", "blocking", "flow"].includes(state) ? "warn" : ""}>${state}<//>
`;

const COLUMNS = [
  { id: "name", title: "Connection", min: 250, cell: (row) => html`<${ConnectionLink} name=${row.name} />` },
  { id: "user_provided_name", title: "Name", width: 160, rank: 3, value: nameOf },
  { id: "user", title: "User", width: 110, rank: 2 },
  { id: "vhost", title: "Vhost", width: 110, rank: 5 },
  { id: "protocol", title: "Protocol", width: 110, rank: 4 },
  { id: "state", title: "State", width: 92, cell: (row) => html`<${ConnectionState} ...${row} />` },
  { id: "ssl", title: "TLS", width: 60, rank: 7, value: (row) => (row.ssl ? "yes" : "") },
  { id: "websocket_path", title: "WebSocket", width: 90, rank: 8 },
  { id: "channels", title: "Channels", width: 90, num: true, rank: 3, cell: (row) => count(row.channels) },
  { id: "recv_oct_details.rate", title: "From client", width: 110, num: true, rank: 2, cell: (row) => `${bytes(row.recv_oct_details?.rate)}/s` },
  { id: "send_oct_details.rate", title: "To client", width: 110, num: true, rank: 2, cell: (row) => `${bytes(row.send_oct_details?.rate)}/s` },
  { id: "connected_at", title: "Connected", width: 180, rank: 6, cell: (row) => time(row.connected_at) },
];

export const ConnectionsView = () => html`
  <${ListView}
    title="Connections"
    kind="connections"
    noun="connection"
    vhosts=${false}
    columns=${COLUMNS}
    keyOf=${(row) => row.name}
    empty="No connection matches."
  />
`;

const BYTE_SERIES = [
  { key: "recv_oct", label: "From client", color: "publish", kind: "rate" },
  { key: "send_oct", label: "To client", color: "deliver", kind: "rate" },
];

/** Whether the user may close a connection. */
const mayClose = (connection) => !isReadOnly() && (isAdministrator() || connection.user === user.value.name);

export function ConnectionView({ parts }) {
  const [, name] = parts;
  const target = path("connections", name);
  const range = useRange();
  const { value: connection, error } = useResource(withQuery(target, historyParameters(range)));
  const { value: channels } = useResource(`${target}/channels`);
  const { value: throttling } = useResource(path("leveret", "connections", name, "throttling"));
  const crumb = html`<a href=${link(["connections"])}>Connections</a>`;
  if (!connection) {
    return html`<${Title} crumb=${crumb} title=${name} /><${Failure} error=${error} />`;
  }
  const { connection_name: given, capabilities, ...client } = connection.client_properties ?? {};
  return html`
    <${Title}
      crumb=${crumb}
      title=${connection.user_provided_name || given || name}
      badges=${html`
        <${ConnectionState} state=${connection.state} />
        <${Badge}>${connection.protocol}<//>
        ${connection.ssl && html`<${Badge}>TLS<//>`}
        ${connection.websocket_path && html`<${Badge}>WebSocket ${connection.websocket_path}<//>`}
      `}
      actions=${html`<button class="danger" onClick=${() => closeConnection(connection)} disabled=${!mayClose(connection)}>Close…</button>`}
    />
    <${Failure} error=${error} />
    ${throttling && html`<${Findings} texts=${diagnosePublisher(connection, channels ?? [], throttling)} />`}
    <${Stats}
      items=${[
        ["Channels", count(connection.channels)],
        ["From client", `${bytes(connection.recv_oct_details?.rate)}/s`, bytes(connection.recv_oct)],
        ["To client", `${bytes(connection.send_oct_details?.rate)}/s`, bytes(connection.send_oct)],
      ]}
    />
    <div class="grid">
      <${Panel} title="Bytes per second" actions=${html`<${RangeChoice} />`}>
        <${Chart} id=${`${name}\nbytes`} label="Bytes per second over time" object=${connection} series=${BYTE_SERIES} format=${bytes} />
      <//>
      <${Panel} title="Connection">
        <${Facts}
          items=${[
            ["Address", connection.name],
            ["User", isAdministrator() ? html`<${UserLink} name=${connection.user} />` : connection.user],
            ["Vhost", connection.vhost],
            ["Connected", time(connection.connected_at)],
            ["Mechanism", connection.auth_mechanism],
            ["Heartbeat", connection.timeout ? `${connection.timeout} s` : "off"],
            ["Frame limit", bytes(connection.frame_max)],
            ["Channel limit", count(connection.channel_max)],
            ["TLS", connection.ssl && [connection.ssl_protocol, connection.ssl_cipher].filter(Boolean).join(" ")],
            ["Certificate", connection.peer_cert_subject],
          ]}
        />
      <//>
    </div>
    <${Work} name=${name} />
    <${Panel} title="Channels" flush>
      <${SmallTable} label="Channels" rows=${channels ?? []} columns=${without(CHANNEL_COLUMNS)} keyOf=${(row) => row.name} initial="number" empty="No channels." />
    <//>
    <div class="grid">
      <${Panel} title="Client properties"><${Entries} object=${client} /><//>
      ${capabilities && html`<${Panel} title="Capabilities"><${Entries} object=${capabilities} /><//>`}
    </div>
  `;
}

/** Links and open transactions of a connection. */
function Work({ name }) {
  const { value: links } = useResource(withQuery("/leveret/links", { connection: name }));
  const { value: transactions } = useResource(withQuery("/leveret/transactions", { connection: name }));
  return html`
    ${links?.length > 0 &&
    html`
      <${Panel} title="AMQP 1.0 links" flush>
        <${SmallTable} label="Links" rows=${links} columns=${without(LINK_COLUMNS)} keyOf=${linkKey} initial="name" />
      <//>
    `}
    ${transactions?.length > 0 &&
    html`
      <${Panel} title="Open transactions" flush>
        <${SmallTable} label="Transactions" rows=${transactions} columns=${without(TRANSACTION_COLUMNS)} keyOf=${transactionKey} initial="age" initialDescending />
      <//>
    `}
  `;
}

/** Returns columns without those of which a connection has one value. */
const without = (columns) => columns.filter(({ id }) => !["user", "vhost", "protocol"].includes(id));

// Vhosts.

import { addVhost, deleteVhost, editLimit, traceVhost } from "../actions.js";
import { has, path, withQuery } from "../api.js";
import { useResource } from "../data.js";
import { bytes, count, growth, rate, short } from "../format.js";
import { html } from "../html.js";
import { link } from "../route.js";
import { isAdministrator, mayAdminister } from "../session.js";
import { Chart, historyParameters, MESSAGE_SERIES, RangeChoice, RATE_SERIES, useRange } from "../ui/chart.js";
import { ListView } from "../ui/list.js";
import { Badge, changeColumn, Facts, Failure, Panel, Stats, Title, UserLink } from "../ui/parts.js";
import { SmallTable } from "../ui/table.js";

const PLACES = { queues: "Queues", exchanges: "Exchanges", map: "Topology" };

const COLUMNS = [
  { id: "name", title: "Name", min: 110, cell: (row) => html`<a href=${link(["vhosts", row.name])} title=${row.name} data-row>${row.name}</a>` },
  { id: "description", title: "Description", rank: 3 },
  { id: "default_queue_type", title: "Queue type", width: 110, rank: 4 },
  { id: "tracing", title: "Tracing", width: 90, rank: 4, cell: (row) => (row.tracing ? "on" : "") },
  { id: "messages_ready", title: "Ready", width: 110, num: true, rank: 1, cell: (row) => count(row.messages_ready) },
  { id: "messages_unacknowledged", title: "Unacked", width: 110, num: true, rank: 2, cell: (row) => count(row.messages_unacknowledged) },
  {
    id: "places",
    title: "Objects",
    width: 210,
    rank: 5,
    sortable: false,
    csv: false,
    cell: ({ name: vhost }) => html`
      <a href=${link(["queues"], { vhost })}>queues</a> · <a href=${link(["exchanges"], { vhost })}>exchanges</a> · <a href=${link(["map"], { vhost })}>map</a>
    `,
  },
];

/** The buttons that change a vhost, in the style of their place. */
const changes = (row, style, dangerous = style) => html`
  ${has("/vhost-limits/{vhost}/{name}", "PUT") && html`<button class=${style} onClick=${() => editLimit("vhost", row.name)}>Limits…</button>`}${" "}
  ${has("/vhosts/{vhost}", "PUT") && html`<button class=${style} onClick=${() => traceVhost(row)}>${row.tracing ? "Stop tracing…" : "Trace…"}</button>`}${" "}
  <button class=${dangerous} onClick=${() => deleteVhost(row)}>Delete…</button>
`;

const CHANGE = changeColumn((row) => changes(row, "link"), 250);

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

const PERMISSION_COLUMNS = [
  { id: "user", title: "User", cell: (row) => html`<${UserLink} name=${row.user} />` },
  ...["configure", "write", "read"].map((id) => ({ id, title: id[0].toUpperCase() + id.slice(1), cell: (row) => html`<code title=${row[id]}>${row[id]}</code>` })),
];

export function VhostView({ parts }) {
  const [, name] = parts;
  const target = path("vhosts", name);
  const range = useRange();
  const { value: vhost, error } = useResource(withQuery(target, historyParameters(range)));
  const { value: limits } = useResource(has("/vhost-limits/{vhost}") ? path("vhost-limits", name) : null);
  const { value: permissions } = useResource(isAdministrator() ? `${target}/permissions` : null);
  const crumb = html`<a href=${link(["vhosts"])}>Vhosts</a>`;
  if (!vhost) {
    return html`<${Title} crumb=${crumb} title=${name} /><${Failure} error=${error} />`;
  }
  const rateOf = (key) => rate(vhost.message_stats[`${key}_details`]?.rate);
  return html`
    <${Title}
      crumb=${crumb}
      title=${name}
      badges=${vhost.tracing && html`<${Badge} tone="warn">traced<//>`}
      actions=${html`
        ${["queues", "exchanges", "map"].map((view) => html`<a class="button" key=${view} href=${link([view], { vhost: name })}>${PLACES[view]}</a>`)}
        ${mayAdminister() && changes(vhost, "", "danger")}
        <${RangeChoice} />
      `}
    />
    <${Failure} error=${error} />
    <${Stats}
      items=${[
        ["Ready", count(vhost.messages_ready)],
        ["Unacked", count(vhost.messages_unacknowledged)],
        ["Messages", count(vhost.messages), vhost.messages_details?.rate ? growth(vhost.messages_details.rate) : ""],
        ["Publish", rateOf("publish")],
        ["Deliver", rateOf("deliver_get")],
        ["Ack", rateOf("ack")],
      ]}
    />
    <div class="grid">
      <${Panel} title="Messages"><${Chart} id=${`${name}\nvhost messages`} label="Messages of the vhost over time" object=${vhost} series=${MESSAGE_SERIES} format=${short} /><//>
      <${Panel} title="Message rates"><${Chart} id=${`${name}\nvhost rates`} label="Message rates of the vhost over time" object=${vhost} series=${RATE_SERIES} format=${rate} /><//>
      <${Panel} title="Properties">
        <${Facts}
          items=${[
            ["Description", vhost.description],
            ["Queue type", vhost.default_queue_type],
            ["Tags", vhost.tags.join(", ")],
            ["Protected from deletion", vhost.protected_from_deletion],
            ["From clients", bytes(vhost.recv_oct)],
            ["To clients", bytes(vhost.send_oct)],
            ...Object.entries(limits?.[0]?.value ?? {}).map(([limit, value]) => [`Limit ${limit}`, count(value)]),
          ]}
        />
      <//>
      ${permissions && html`<${Panel} title="Permissions" flush><${SmallTable} label="Permissions" rows=${permissions} columns=${PERMISSION_COLUMNS} keyOf=${(row) => row.user} initial="user" empty="No user has permissions." /><//>`}
    </div>
  `;
}

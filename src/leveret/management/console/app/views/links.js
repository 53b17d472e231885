// Links of AMQP 1.0, attached and suspended.

import { deleteLink, releaseLink } from "../actions.js";
import { named, path, withQuery } from "../api.js";
import { useResource } from "../data.js";
import { count, duration, short, time } from "../format.js";
import { html } from "../html.js";
import { link, route } from "../route.js";
import { Chart } from "../ui/chart.js";
import { ListView } from "../ui/list.js";
import { Badge, ConnectionLink, Facts, Failure, Note, Panel, Stats, Title, UserLink, changeColumn } from "../ui/parts.js";
import { isAdministrator, mayAdminister } from "../session.js";

/** The location of a link; `container` may be empty. */
const linkTo = ({ vhost, name, user, container, role }) => link(["links", vhost, name], { user, container, role });

export const linkKey = (row) => [row.vhost, row.user, row.container, row.name, row.role].join("\n");

const ROLES = { sender: "to client", receiver: "from client", "shared-durable": "shared, durable", "shared-volatile": "shared" };
const directionOf = (row) => ROLES[row.role] ?? row.role;
const LinkState = ({ state }) => html`<${Badge} tone=${state === "attached" ? "good" : "warn"}>${state}<//>`;

export const LINK_COLUMNS = [
  { id: "name", title: "Link", min: 190, cell: (row) => html`<a href=${linkTo(row)} title=${row.name} data-row>${row.name || "(no name)"}</a>` },
  { id: "address", title: "Address", cell: (row) => html`<code title=${row.address}>${row.address}</code>` },
  { id: "role", title: "Direction", width: 116, rank: 3, value: directionOf },
  { id: "state", title: "State", width: 100, rank: 1, cell: (row) => html`<${LinkState} ...${row} />` },
  { id: "user", title: "User", width: 100, rank: 6 },
  { id: "vhost", title: "Vhost", width: 90, rank: 8 },
  { id: "session", title: "Session", width: 80, num: true, rank: 7, value: (row) => row.session, cell: (row) => (row.session === null ? "" : String(row.session)) },
  { id: "credit", title: "Credit", width: 84, num: true, rank: 2, cell: (row) => (row.credit === null ? "" : count(row.credit)) },
  { id: "unsettled", title: "Unsettled", width: 92, num: true, cell: (row) => count(row.unsettled) },
  { id: "delivery_count", title: "Delivery count", width: 116, num: true, rank: 4, cell: (row) => (row.delivery_count === null ? "" : count(row.delivery_count)) },
  { id: "sender_settle_mode", title: "Settle modes", width: 122, rank: 5, sortable: false, value: (row) => [row.sender_settle_mode, row.receiver_settle_mode].filter(Boolean).join(", ") },
];

export const LinksView = () => html`
  <${ListView} title="AMQP 1.0 links" kind="leveret/links" noun="link" columns=${mayAdminister() ? [...LINK_COLUMNS, CHANGE] : LINK_COLUMNS} keyOf=${linkKey} empty="No link matches." />
`;

const CHANGE = changeColumn(
  (row) => html`
    ${row.state === "suspended" && row.role === "sender" && html`<button class="link" onClick=${() => releaseLink(row)}>Release…</button>${" "}`}
    <button class="link" onClick=${() => deleteLink(row)}>Delete…</button>
  `,
);

const SERIES = [
  { key: "unsettled", label: "Unsettled", color: "unacked", kind: "gauge", fill: true },
  { key: "credit", label: "Credit", color: "ready", kind: "gauge" },
];

export function LinkView({ parts }) {
  const [, vhost, name] = parts;
  const { user, container = "", role } = route.value.query;
  const { value, error } = useResource(withQuery(path("leveret", "links", vhost), named(name)));
  const crumb = html`<a href=${link(["links"])}>AMQP 1.0 links</a> › <a href=${link(["links"], { vhost })} title=${vhost}>${vhost}</a>`;
  const found = value?.items.find(
    (row) => row.name === name && row.container === container && (!user || row.user === user) && (!role || row.role === role),
  );
  if (!found) {
    return html`<${Title} crumb=${crumb} title=${name} /><${Failure} error=${error} />${value && html`<${Note}>This link does not exist any more.<//>`}`;
  }
  const connection = found.connection_details.name;
  return html`
    <${Title}
      crumb=${crumb}
      title=${name}
      badges=${html`<${LinkState} ...${found} /><${Badge}>${directionOf(found)}<//>`}
      actions=${mayAdminister() &&
      html`
        <button disabled=${found.state !== "suspended" || found.role !== "sender"} onClick=${() => releaseLink(found)}>Release…</button>
        <button class="danger" onClick=${() => deleteLink(found)}>Delete…</button>
      `}
    />
    <${Failure} error=${error} />
    <${Stats}
      items=${[
        ["Unsettled", count(found.unsettled)],
        ["Credit", found.credit === null ? "–" : count(found.credit)],
        ["Delivery count", found.delivery_count === null ? "–" : count(found.delivery_count)],
      ]}
    />
    <div class="grid">
      <${Panel} title="Flow">
        <${Chart} id=${`${linkKey(found)}\nlink`} label="Unsettled deliveries and credit of the link over time" object=${found} series=${SERIES} format=${short} />
      <//>
      <${Panel} title="Link">
        <${Facts}
          items=${[
            ["Address", html`<code>${found.address}</code>`],
            ["Container", found.container],
            ["User", isAdministrator() ? html`<${UserLink} name=${found.user} />` : found.user],
            ["Connection", connection && html`<${ConnectionLink} name=${connection} />`],
            ["Session", found.session === null ? "" : html`<a href=${link(["channels", `${connection} (${found.session})`])}>${String(found.session)}</a>`],
            ["Sender settle mode", found.sender_settle_mode],
            ["Receiver settle mode", found.receiver_settle_mode],
            ["Durability", found.durable],
            ["Expiry policy", found.expiry],
            ["Expires after", found.timeout > 0 && duration(1000 * found.timeout)],
            ["Expires", found.expires_at > 0 && time(found.expires_at)],
          ]}
        />
      <//>
    </div>
  `;
}

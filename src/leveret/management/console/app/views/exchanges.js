// Exchanges.

import { addBinding, declareExchange, deleteExchange } from "../actions.js";
import { path, withQuery } from "../api.js";
import { useResource } from "../data.js";
import { useDestinations } from "../destinations.js";
import { exchangeName, exchangePath, plain, plural, rate } from "../format.js";
import { html, useState } from "../html.js";
import { link, route } from "../route.js";
import { mayDeclare } from "../session.js";
import { Chart, historyParameters, RangeChoice, useRange } from "../ui/chart.js";
import { BindingTable } from "../ui/bindings.js";
import { copyAs } from "../ui/copy.js";
import { ListView } from "../ui/list.js";
import { Star } from "../ui/star.js";
import { Badge, deduplicationOf, Entries, ExchangeLink, Failure, Features, Note, Panel, QueueLink, Stats, Tabs, Title } from "../ui/parts.js";
import { PublishForm } from "../ui/publish.js";
import { LiveTail } from "../ui/tail.js";
import { Allowed, useRole } from "../ui/roles.js";

const stats = (row, key) => row.message_stats?.[`${key}_details`]?.rate;

const COLUMNS = [
  { id: "name", title: "Name", cell: (row) => html`<span class="named"><${Star} kind="exchanges" vhost=${row.vhost} name=${row.name} /><${ExchangeLink} ...${row} /></span>` },
  { id: "vhost", title: "Vhost", width: 120, rank: 3 },
  { id: "type", title: "Type", width: 130 },
  { id: "features", title: "Features", width: 160, rank: 4, sortable: false, csv: false, cell: (row) => html`<span class="badges"><${Features} object=${row} /></span>` },
  { id: "policy", title: "Policy", width: 120, rank: 5 },
  { id: "message_stats.publish_in_details.rate", title: "In", width: 90, num: true, rank: 1, cell: (row) => rate(stats(row, "publish_in")) },
  { id: "message_stats.publish_out_details.rate", title: "Out", width: 90, num: true, rank: 2, cell: (row) => rate(stats(row, "publish_out")) },
];

export const ExchangesView = () => html`
  <${ListView}
    title="Exchanges"
    kind="exchanges"
    noun="exchange"
    columns=${COLUMNS}
    keyOf=${(row) => `${row.vhost}\n${row.name}`}
    starred="exchanges"
    empty="No exchange matches."
    actions=${mayDeclare() && html`<button class="primary" onClick=${declareExchange}>Declare exchange</button>`}
  />
`;

const TABS = [
  ["state", "State"],
  ["bindings", "Bindings"],
  ["publish", "Publish"],
  ["live", "Live"],
];

// The role or the permission that tabs need.
const NEEDED = { publish: ["operator", "write"], live: ["viewer", "read", { changes: false }] };

export function ExchangeView({ parts }) {
  const [, vhost, name] = parts;
  const { tab = "state" } = route.value.query;
  const range = useRange();
  const may = useRole({ vhost, name });
  const target = path("exchanges", vhost, name);
  const { value: exchange, error } = useResource(withQuery(target, historyParameters(range)));
  const crumb = html`<a href=${link(["exchanges"])}>Exchanges</a> › <a href=${link(["exchanges"], { vhost })} title=${vhost}>${vhost}</a>`;
  const star = html`<${Star} kind="exchanges" vhost=${vhost} name=${name === exchangePath("") ? "" : name} />`;
  if (!exchange) {
    return html`<${Title} crumb=${crumb} title=${name} star=${star} /><${Failure} error=${error} />`;
  }
  const isAllowed = (id) => !NEEDED[id] || may(...NEEDED[id]);
  const own = exchange.name !== "" && !exchange.name.startsWith("amq.");
  return html`
    <${Title}
      crumb=${crumb}
      star=${star}
      title=${exchangeName(exchange.name)}
      badges=${html`<${Badge}>${exchange.type}<//><${Features} object=${exchange} />${exchange.policy && html`<${Badge}>policy ${exchange.policy}<//>`}`}
      actions=${html`
        <a class="button" href=${link(["map"], { vhost, name: exchange.name })}>Topology</a>
        ${exchange.name !== "" && html`<button onClick=${() => copyAs("exchange", exchange)}>Copy as…</button>`}
        ${own && html`<button class="danger" onClick=${() => deleteExchange(exchange)} disabled=${!may("administrator", "configure")}>Delete…</button>`}
      `}
    />
    <${Failure} error=${error} />
    <${Tabs} label="Parts of the exchange" parts=${parts} items=${TABS.filter(([id]) => isAllowed(id))} current=${tab} />
    <${Allowed} may=${may} allowed=${isAllowed(tab)}>
      ${tab === "publish"
        ? html`<${Publish} exchange=${exchange} />`
        : tab === "live"
          ? html`<${LiveTail} key=${target} queue=${exchange} target=${path("leveret", "exchanges", vhost, name, "messages", "tail")} />`
          : tab === "bindings"
            ? html`<${Bindings} exchange=${exchange} target=${target} />`
            : html`<${State} exchange=${exchange} />`}
    <//>
  `;
}

const FLOW_SERIES = [
  { key: "message_stats.publish_in", label: "In", color: "publish", kind: "rate" },
  { key: "message_stats.publish_out", label: "Out", color: "deliver", kind: "rate" },
];

const State = ({ exchange }) => html`
  <${Stats}
    items=${[
      ["Messages in", rate(stats(exchange, "publish_in"))],
      ["Messages out", rate(stats(exchange, "publish_out"))],
      ...deduplicationOf(exchange),
    ]}
  />
  <div class="grid">
    <${Panel} title="Message rates" actions=${html`<${RangeChoice} />`}>
      <${Chart} id=${`${exchange.vhost}\n${exchange.name}\nexchange`} label="Message rates of the exchange over time" object=${exchange} series=${FLOW_SERIES} format=${rate} />
    <//>
    <${Panel} title="Arguments"><${Entries} object=${exchange.arguments} /><//>
  </div>
`;

function Bindings({ exchange, target }) {
  const { value: outgoing, error } = useResource(`${target}/bindings/source`, { slow: true });
  const { value: incoming } = useResource(`${target}/bindings/destination`, { slow: true });
  const { vhost, name } = exchange;
  const may = useRole(exchange);
  return html`
    <${Failure} error=${error} />
    <${Panel}
      title="Bindings from this exchange"
      actions=${name !== "" && html`<button onClick=${() => addBinding({ vhost, source: exchangePath(name) })} disabled=${!may("administrator", "read")}>Add binding</button>`}
      flush
    >
      <${BindingTable} bindings=${outgoing} vhost=${vhost} />
    <//>
    ${incoming?.length > 0 && html`<${Panel} title="Bindings to this exchange" flush><${BindingTable} bindings=${incoming} from vhost=${vhost} /><//>`}
  `;
}

function Publish({ exchange }) {
  const [key, setKey] = useState("");
  const [properties, setProperties] = useState("");
  const { value: exchanges } = useResource(path("exchanges", exchange.vhost), { slow: true });
  const { value: bindings } = useResource(path("bindings", exchange.vhost), { slow: true });
  const found = useDestinations({ vhost: exchange.vhost, exchange: exchange.name, key, properties, exchanges, bindings });
  return html`
    <div class="grid">
      <${Panel} title="Publish a message">
        <${PublishForm} vhost=${exchange.vhost} exchange=${exchange.name} onRoutingKey=${setKey} onProperties=${setProperties} />
      <//>
      <${Panel} title="Destinations of this routing key"><${Destinations} found=${found} vhost=${exchange.vhost} /><//>
    </div>
  `;
}

const MAX_SHOWN = 100;

/** The queues that a message would reach, and the bindings by which it gets there: what `useDestinations` returns. */
export function Destinations({ found, vhost }) {
  if (!found) {
    return html`<p class="muted">Reading bindings…</p>`;
  }
  return html`
    <div class="form">
      ${found.queues.length === 0
        ? html`<${Note} tone="warn">No queue.<//>`
        : html`<ul>${found.queues.slice(0, MAX_SHOWN).map((name) => html`<li key=${name}><${QueueLink} vhost=${vhost} name=${name} /></li>`)}</ul>`}
      <${Failure} error=${found.error} />
      ${found.bindings.length > 0 &&
      html`
        <details>
          <summary>${plural(found.bindings.length, "binding")} on the way</summary>
          <ul>
            ${found.bindings.slice(0, MAX_SHOWN).map(
              (binding, index) => html`<li key=${index}>${exchangeName(binding.source)} → ${binding.destination} <code>${binding.routing_key || plain(binding.arguments)}</code></li>`,
            )}
          </ul>
        </details>
      `}
      ${found.uncertain && html`<p class="small muted">Exchanges of other types than direct, fanout, topic and headers choose among their bindings by themselves.</p>`}
    </div>
  `;
}

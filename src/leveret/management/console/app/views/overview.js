// The broker at a glance: totals, rates, alarms, nodes and the queues that need attention.

import { has, withQuery } from "../api.js";
import { useResource } from "../data.js";
import { bytes, count, duration, growth, rate, short } from "../format.js";
import { html } from "../html.js";
import { link, route, setQuery } from "../route.js";
import { isMonitor } from "../session.js";
import { Chart, historyParameters, MESSAGE_SERIES, RangeChoice, RATE_SERIES, useKept, useRange } from "../ui/chart.js";
import { AddMarkButton, EventsPanel, useEvents } from "../ui/marks.js";
import { Badge, Failure, Note, Panel, QueueLink, Stats, Title } from "../ui/parts.js";
import { Table } from "../ui/table.js";
import { Timing } from "../ui/timing.js";
import { ClusterPanels } from "./cluster.js";

const TOTAL_SERIES = MESSAGE_SERIES.map((series) => ({ ...series, key: `queue_totals.${series.key}` }));
const TOP_QUEUES = 10;
const BROKER = {};

export function OverviewView() {
  const range = useRange();
  const { value, error } = useResource(withQuery("/overview", historyParameters(range)));
  const kept = useKept(isMonitor() ? BROKER : null, range);
  const events = useEvents(null);
  const { value: nodes } = useResource(isMonitor() && has("/nodes") ? "/nodes" : null);
  if (!value) {
    return html`<${Title} title="Overview" /><${Failure} error=${error} />`;
  }
  const { queue_totals: totals, object_totals: objects, message_stats: stats } = value;
  const growing = totals.messages_details?.rate;
  return html`
    <${Title} title="Overview" actions=${html`<${AddMarkButton} /><${RangeChoice} />`} />
    <${Failure} error=${error} />
    <${Alarms} nodes=${nodes} />
    <${Stats}
      items=${[
        ["Ready", count(totals.messages_ready)],
        ["Unacked", count(totals.messages_unacknowledged)],
        ["Messages", count(totals.messages), growing ? growth(growing) : ""],
        ["Publish", rate(stats.publish_details?.rate)],
        ["Deliver", rate(stats.deliver_get_details?.rate)],
        ["Ack", rate(stats.ack_details?.rate)],
      ]}
    />
    <div class="grid">
      <${Panel} title="Messages">
        <${Chart} id="overview-messages" label="Messages in all queues over time" object=${value} kept=${kept} series=${TOTAL_SERIES} format=${short} events=${events} />
      <//>
      <${Panel} title="Message rates">
        <${Chart} id="overview-rates" label="Message rates over time" object=${value} kept=${kept} series=${RATE_SERIES} format=${rate} events=${events} />
      <//>
    </div>
    <${Stats}
      items=${[
        ["Connections", html`<a href=${link(["connections"])}>${count(objects.connections)}</a>`],
        ["Channels", html`<a href=${link(["channels"])}>${count(objects.channels)}</a>`],
        ["Consumers", html`<a href=${link(["consumers"])}>${count(objects.consumers)}</a>`],
        ["Queues", html`<a href=${link(["queues"])}>${count(objects.queues)}</a>`],
        ["Exchanges", html`<a href=${link(["exchanges"])}>${count(objects.exchanges)}</a>`],
      ]}
    />
    <div class="grid">
      <${TopQueues} />
      <${EventsPanel} events=${events} />
      <${ClusterPanels} />
      ${nodes?.map((node) => html`<${Node} key=${node.name} node=${node} overview=${value} />`)}
    </div>
  `;
}

function Alarms({ nodes = [] }) {
  const raised = nodes.flatMap((node) => [
    node.mem_alarm && `Memory alarm on ${node.name}: ${bytes(node.mem_used)} of ${bytes(node.mem_limit)} used. Publishers are blocked.`,
    node.disk_free_alarm && `Disk alarm on ${node.name}: ${bytes(node.disk_free)} free, ${bytes(node.disk_free_limit)} required. Publishers are blocked.`,
  ]);
  return raised.filter(Boolean).map((text) => html`<${Note} tone="bad">${text}<//>`);
}

const ORDERS = [
  ["messages_details.rate", "growth"],
  ["messages", "messages"],
  ["message_stats.publish_details.rate", "publish rate"],
  ["messages_unacknowledged", "unacked"],
];

function TopQueues() {
  const { top = ORDERS[0][0] } = route.value.query;
  const { value, error } = useResource(
    withQuery("/queues", {
      page: 1, page_size: TOP_QUEUES, sort: top, sort_reverse: "true",
      columns: "name,vhost,messages,messages_unacknowledged,consumers,messages_details.rate,message_stats.publish_details.rate",
    }),
  );
  const rows = value?.items ?? [];
  const choice = html`
    <label class="check small muted">
      By
      <select value=${top} onChange=${(event) => setQuery({ top: event.target.value })}>
        ${ORDERS.map(([key, text]) => html`<option value=${key} selected=${key === top}>${text}</option>`)}
      </select>
    </label>
  `;
  return html`
    <${Panel} title="Top queues" actions=${choice} flush>
      <${Failure} error=${error} />
      <${Table}
        label="Top queues"
        columns=${TOP_COLUMNS}
        total=${rows.length}
        row=${(index) => rows[index]}
        keyOf=${(row) => `${row.vhost}\n${row.name}`}
        loading=${!value}
        empty="No queues yet."
      />
    <//>
  `;
}

const TOP_COLUMNS = [
  { id: "name", title: "Queue", cell: (row) => html`<${QueueLink} ...${row} />` },
  { id: "messages", title: "Messages", width: 90, num: true, cell: (row) => count(row.messages) },
  { id: "growth", title: "Growth", width: 84, num: true, rank: 3, cell: (row) => growth(row.messages_details?.rate) },
  { id: "publish", title: "Publish", width: 84, num: true, rank: 1, cell: (row) => rate(row.message_stats?.publish_details?.rate) },
  { id: "consumers", title: "Consumers", width: 90, num: true, rank: 2, cell: (row) => (row.consumers ? count(row.consumers) : html`<${Badge} tone="warn">none<//>`) },
];

function Node({ node, overview }) {
  return html`
    <${Panel} title=${node.name} actions=${html`<a href=${link(["overview", node.name])}>Memory</a>`}>
      <dl class="facts">
        <dt>Uptime</dt>
        <dd>${duration(node.uptime)}</dd>
        <${Usage} label="Memory" used=${node.mem_used} limit=${node.mem_limit} format=${bytes} alarm=${node.mem_alarm} />
        <dt>Disk free</dt>
        <dd>${bytes(node.disk_free)} <span class="muted">alarm below ${bytes(node.disk_free_limit)}</span></dd>
        <${Usage} label="Files" used=${node.fd_used} limit=${node.fd_total} format=${count} />
        <${Timing} />
        <dt>Version</dt>
        <dd>${overview.product_name} ${overview.product_version} <span class="muted">speaks RabbitMQ ${overview.rabbitmq_version}</span></dd>
        <dt>Listeners</dt>
        <dd>
          ${overview.listeners.map(
            ({ protocol, ip_address: address, port }) => html`<div><code>${protocol} ${address || "*"}:${port}</code></div>`,
          )}
        </dd>
      </dl>
    <//>
  `;
}

function Usage({ label, used, limit, format, alarm }) {
  const part = limit > 0 ? Math.min(1, used / limit) : 0;
  return html`
    <dt>${label}</dt>
    <dd>
      ${format(used)} <span class="muted">of ${format(limit)}</span>
      <div class="meter ${alarm || part > 0.9 ? "bad" : ""}"><div style=${{ width: `${(100 * part).toFixed(1)}%` }}></div></div>
    </dd>
  `;
}

// One node: its memory and its disk over time.

import { has, path, withQuery } from "../api.js";
import { useResource } from "../data.js";
import { bytes, count, duration } from "../format.js";
import { html } from "../html.js";
import { link } from "../route.js";
import { Chart, historyParameters, RangeChoice, useRange } from "../ui/chart.js";
import { Facts, Failure, Panel, Stats, Title } from "../ui/parts.js";
import { SmallTable } from "../ui/table.js";

const MEMORY_SERIES = [{ key: "mem_used", label: "Used", color: "ready", kind: "gauge", fill: true }];
const DISK_SERIES = [{ key: "disk_free", label: "Free", color: "publish", kind: "gauge", fill: true }];
// Names of RabbitMQ's API for the parts that it knows of Leveret; the others are 0.
const PARTS = { queue_procs: "Queues and their messages", other_system: "Everything else" };
const COLUMNS = [
  { id: "part", title: "Memory of" },
  { id: "used", title: "Used", width: 110, num: true, cell: (row) => bytes(row.used) },
  { id: "share", title: "Share", width: 80, num: true, cell: (row) => `${Math.round(100 * row.share)} %` },
];
const SHARD_COLUMNS = [{ id: "number", title: "Shard", value: (row) => String(row.number) }, { id: "memory", title: "Used", width: 110, num: true, cell: (row) => bytes(row.memory) }];

export function NodeView({ parts }) {
  const [, name] = parts;
  const range = useRange();
  const [age, step] = range;
  const { value: node, error } = useResource(withQuery(path("nodes", name), { memory: "true", node_stats_age: age, node_stats_incr: step, ...historyParameters(range) }));
  const { value: shards } = useResource(has("/leveret/shards") ? "/leveret/shards" : null);
  const crumb = html`<a href=${link(["overview"])}>Overview</a>`;
  if (!node) {
    return html`<${Title} crumb=${crumb} title=${name} /><${Failure} error=${error} />`;
  }
  const { total, ...found } = node.memory;
  const rows = Object.entries(found).filter(([, used]) => used > 0).map(([part, used]) => ({ part: PARTS[part] ?? part, used, share: used / total.rss }));
  return html`
    <${Title} crumb=${crumb} title=${name} actions=${html`<${RangeChoice} />`} />
    <${Failure} error=${error} />
    <${Stats}
      items=${[
        ["Memory", bytes(node.mem_used), `publishers are blocked above ${bytes(node.mem_limit)}`],
        ["Disk free", bytes(node.disk_free), `publishers are blocked below ${bytes(node.disk_free_limit)}`],
        ["Files", count(node.fd_used), `of ${count(node.fd_total)}`],
        ["Connections", count(node.sockets_used)],
        ["Uptime", duration(node.uptime)],
      ]}
    />
    <div class="grid">
      <${Panel} title="Memory"><${Chart} id=${`${name} memory`} label="Memory of the node over time" object=${node} series=${MEMORY_SERIES} format=${bytes} /><//>
      <${Panel} title="Disk"><${Chart} id=${`${name} disk`} label="Free disk space of the node over time" object=${node} series=${DISK_SERIES} format=${bytes} /><//>
      <${Panel} title="Use of memory" flush><${SmallTable} label="Use of memory" rows=${rows} columns=${COLUMNS} keyOf=${(row) => row.part} initial="used" initialDescending /><//>
      ${shards?.length > 1 && html`<${Panel} title="Memory of shards" flush><${SmallTable} label="Memory of shards" rows=${shards} columns=${SHARD_COLUMNS} keyOf=${(row) => row.number} initial="number" /><//>`}
      <${Panel} title="Process">
        <${Facts} items=${[["Process id", node.os_pid], ["Data directory", html`<code>${node.db_dir}</code>`], ["Configuration", node.config_files.filter(Boolean).join(", ")], ["Processors", count(node.processors)]]} />
      <//>
    </div>
  `;
}

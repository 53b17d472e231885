// The shards of the broker, and the nodes of its cluster.

import { call, has, path } from "../api.js";
import { useResource } from "../data.js";
import { agree, bytes, count, duration, plural } from "../format.js";
import { html } from "../html.js";
import { isMonitor, mayAdminister } from "../session.js";
import { ChangeForm, confirmChange, openDialog } from "../ui/dialog.js";
import { Choice, useFields } from "../ui/form.js";
import { Badge, changeColumn, Facts, Failure, Note, Panel } from "../ui/parts.js";
import { Table } from "../ui/table.js";

// Seconds from which a wait for a standby is more than that of an ordinary commit.
const MIN_WAIT = 1;
const NODE_TONES = { live: "good", draining: "warn", gone: "bad" };

const SHARD_COLUMNS = [
  { id: "number", title: "Shard", width: 60, num: true, cell: (row) => row.number },
  { id: "state", title: "State", width: 96, cell: (row) => html`<${Badge} tone=${row.state === "ready" ? "good" : row.state === "idle" ? "" : "bad"}>${row.state}<//>` },
  { id: "vhosts", title: "Vhosts", cell: (row) => row.vhosts.join(", ") },
  { id: "connections", title: "Connections", width: 104, num: true, cell: (row) => count(row.connections) },
  { id: "memory", title: "Memory", width: 90, num: true, rank: 1, cell: (row) => bytes(row.memory) },
];
const RESTARTS = { id: "restarts", title: "Restarts", width: 84, num: true, rank: 2, cell: (row) => count(row.restarts) };
const OWNED_COLUMNS = [
  { id: "node", title: "Node", width: 110, cell: (row) => row.node || html`<span class="muted">none</span>` },
  { id: "epoch", title: "Epoch", width: 70, num: true, rank: 2, cell: (row) => count(row.epoch) },
  {
    id: "takeovers", title: "Take-overs", width: 104, num: true, rank: 1,
    cell: (row) => html`<span title=${lastTakeover(row)}>${count(row.takeovers)}</span>`,
  },
];

function lastTakeover({ takeover_age: age, takeover_seconds: seconds }) {
  if (age === null) {
    return "";
  }
  return `${duration(1000 * age)} ago, ${seconds === null ? "not served yet" : `served again after ${seconds.toFixed(2)} s`}`;
}

/** The processes that the vhosts are in, if there are several, and the nodes that own them, if the broker is one. */
export function ClusterPanels() {
  const { value: shards, error } = useResource(isMonitor() && has("/leveret/shards") ? "/leveret/shards" : null);
  const { value: nodes } = useResource(isMonitor() && has("/leveret/cluster/nodes") ? "/leveret/cluster/nodes" : null);
  const isNode = nodes?.length > 0;
  if (!error && !(shards?.length > 1)) {
    return null;
  }
  const rows = shards ?? [];
  const takers = isNode ? nodes.filter((node) => node.state === "live").map((node) => node.name) : [];
  const columns = [...SHARD_COLUMNS, ...(isNode ? OWNED_COLUMNS : [RESTARTS]), ...(takers.length > 1 && mayAdminister() ? [moveColumn(takers)] : [])];
  return html`
    <${Panel} title="Shards" flush>
      <${Failure} error=${error} />
      <${Table} label="Shards" columns=${columns} total=${rows.length} row=${(index) => rows[index]} keyOf=${(row) => row.number} />
    <//>
    ${isNode && html`<${Nodes} nodes=${nodes} /><${Cluster} />`}
  `;
}

const NODE_COLUMNS = [
  { id: "name", title: "Node", cell: (row) => (row.here ? html`<b>${row.name}</b>` : row.name) },
  { id: "state", title: "State", width: 96, cell: (row) => html`<${Badge} tone=${NODE_TONES[row.state]}>${row.state}<//>` },
  { id: "shards", title: "Shards", width: 120, cell: (row) => row.shards.join(", ") },
  { id: "address", title: "Address", width: 170, rank: 2, cell: (row) => html`<code>${row.address}</code>` },
  { id: "version", title: "Version", width: 90, rank: 1, cell: (row) => row.version },
];

function Nodes({ nodes }) {
  const columns = mayAdminister() ? [...NODE_COLUMNS, NODE_CHANGE] : NODE_COLUMNS;
  return html`
    <${Panel} title="Nodes" flush>
      <${Table} label="Nodes" columns=${columns} total=${nodes.length} row=${(index) => nodes[index]} keyOf=${(row) => row.name} />
    <//>
  `;
}

function Cluster() {
  const { value, error } = useResource("/leveret/cluster");
  if (!value) {
    return html`<${Failure} error=${error} />`;
  }
  const last = value.last_takeover;
  const waits = value.waiting_seconds >= MIN_WAIT;
  return html`
    <${Panel} title="Cluster">
      ${value.problem && html`<${Note} tone="bad">${value.problem}<//>`}
      ${waits && html`<${Note} tone="bad">${plural(value.waiting, "transaction")} ${agree(value.waiting, "waits", "wait")} for a standby: nothing is confirmed.<//>`}
      ${value.unowned.length > 0 && html`<${Note} tone="bad">Without an owner: shard ${value.unowned.join(", ")}<//>`}
      ${Object.entries(value.unreached).map(([node, others]) => html`<${Note} tone="bad">${node} does not reach ${others.join(", ")}.<//>`)}
      <${Facts}
        items=${[
          ["Database", html`PostgreSQL ${value.version} <code>${value.database}</code>`],
          ["Replication", value.synchronous || "one disk (no synchronous standby)"],
          ...value.standbys.map((standby) => ["Standby", `${standby.name} ${standby.sync}, lag ${standby.lag === null ? "unknown" : bytes(standby.lag)}`]),
          ["Take-overs", count(value.takeovers)],
          ["Last take-over", last && `shard ${last.shard}, ${lastTakeover({ takeover_age: last.age, takeover_seconds: last.seconds })}`],
        ]}
      />
    <//>
  `;
}

const NODE_CHANGE = changeColumn(
  (row) => html`
    ${row.state === "live" && html`<button class="link" onClick=${() => drain(row)}>Drain…</button>`}
    ${row.state === "draining" && html`<button class="link" onClick=${() => endDrain(row)}>End drain…</button>`}
    ${row.state === "gone" && html`<button class="link" onClick=${() => forget(row)}>Forget…</button>`}
  `,
);

const moveColumn = (takers) =>
  changeColumn((row) => row.node && html`<button class="link" onClick=${() => move(row, takers.filter((name) => name !== row.node))}>Move…</button>`);

function MoveShard({ shard, others }) {
  const state = useFields({ node: others[0] });
  const [values] = state;
  async function submit() {
    await call("POST", path("leveret", "shards", shard.number, "move"), { node: values.node });
    return `Moved shard ${shard.number} to node '${values.node}'`;
  }
  return html`
    <${ChangeForm} label="Move shard" tone="danger" submit=${submit}>
      <p>Clients of ${shard.vhosts.join(", ")} are disconnected from node <b>${shard.node}</b> and reconnect.</p>
      <${Choice} label="To node" name="node" state=${state} options=${others} />
    <//>
  `;
}

const move = (shard, others) => openDialog(`Move shard ${shard.number}`, () => html`<${MoveShard} shard=${shard} others=${others} />`);

function drain({ name, shards }) {
  confirmChange({
    title: "Drain node",
    text: html`Moves ${plural(shards.length, "shard")} of <b>${name}</b> to other nodes, one after another. Their clients reconnect.`,
    label: "Drain node",
    change: () => call("POST", path("leveret", "cluster", "nodes", name, "drain"), { on: true }),
    done: `Node '${name}' owns no shards`,
  });
}

function endDrain({ name }) {
  confirmChange({
    title: "End drain",
    text: html`Lets <b>${name}</b> own shards again.`,
    label: "End drain",
    change: () => call("POST", path("leveret", "cluster", "nodes", name, "drain"), { on: false }),
    done: `Node '${name}' owns shards again`,
  });
}

function forget({ name }) {
  confirmChange({
    title: "Forget node",
    text: html`Removes <b>${name}</b>, which is gone, from the list. If it starts again, it joins as a new node.`,
    label: "Forget node",
    change: () => call("DELETE", path("leveret", "cluster", "nodes", name)),
    done: `Forgot node '${name}'`,
  });
}

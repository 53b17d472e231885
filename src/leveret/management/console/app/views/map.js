// The topology map: exchanges, their bindings, queues and clients that consume from them, and the way of a message through them.

import { Graph, layout } from "../../vendor/dagre.js";
import { get, has, path, withQuery } from "../api.js";
import { useResource } from "../data.js";
import { useDestinations } from "../destinations.js";
import { count, exchangeName, exchangePath, growth, plural, rate, short } from "../format.js";
import { html, useEffect, useMemo, useRef, useState } from "../html.js";
import { link, route, setQuery } from "../route.js";
import { VhostChoice } from "../ui/list.js";
import { Badge, Facts, Failure, Note, Panel, Title } from "../ui/parts.js";
import { PublishForm } from "../ui/publish.js";
import { Destinations } from "./exchanges.js";

// Nodes that the map shows at most; a filter selects others.
const MAX_NODES = 250;
const WIDTH = 190;
const HEIGHT = 42;
// Width of the label of an edge, which lies between nodes.
const LABEL = 100;
// Objects from which those with the same prefix share a node, and members that such a node has at least.
const GROUPED_FROM = 40;
const MIN_MEMBERS = 3;
const MIN_SCALE = 0.1;
// Scale below which texts cannot be read.
const READABLE = 0.6;
const MAX_SCALE = 3;

const PREFIXES = { exchange: "e", queue: "q", client: "c" };
const idOf = (kind, name) => `${PREFIXES[kind]}:${name}`;

/** Returns the clients that consume from queues: `{name, title, user, queues}`, where `queues` has the number of consumers by queue. */
function clientsOf(consumers, connections, queues) {
  const known = new Set(queues.map((queue) => queue.name));
  const titles = new Map(connections.map((item) => [item.name, item.user_provided_name]));
  const clients = new Map();
  for (const { queue, channel_details: channel } of consumers) {
    const name = channel.connection_name;
    if (name === undefined || !known.has(queue.name)) {
      continue; // a consumer of the broker itself, or of a queue that is not on the map
    }
    const client = clients.get(name) ?? { name, title: titles.get(name) || name, user: channel.user, queues: new Map() };
    client.queues.set(queue.name, (client.queues.get(queue.name) ?? 0) + 1);
    clients.set(name, client);
  }
  return [...clients.values()];
}

/** Returns the rates of the edges to clients. The rate of a queue with several clients is not that of one of them. */
function consumerRates(clients, queues) {
  const delivered = new Map(queues.map((queue) => [queue.name, queue.message_stats?.deliver_get_details?.rate ?? 0]));
  const edges = clients.flatMap((client) => [...client.queues.keys()].map((queue) => [queue, client.name]));
  const numbers = Map.groupBy(edges, ([queue]) => queue);
  return edges
    .filter(([queue]) => numbers.get(queue).length === 1)
    .map(([queue, name]) => [`${idOf("queue", queue)}\n${idOf("client", name)}`, delivered.get(queue)]);
}

const labelOf = ({ kind, item }) => (kind === "client" ? item.title : item.name);

/** Returns the part of a name up to the first separator or digit behind the filter, or "". */
function prefixOf(name, text) {
  const start = name.toLowerCase().startsWith(text) ? text.length : 0;
  const rest = name.slice(start);
  const [found] = rest.match(/^[^.:/_-]*[.:/_-]/) ?? rest.match(/^\D+(?=\d)/) ?? [""];
  return found && name.slice(0, start) + found;
}

/**
 * Returns nodes and edges, with one node for objects of a kind that have the same prefix.
 *
 * `groups` has the ids of these nodes by those of their members, and `merged` the keys of edges by those of the edges in them.
 */
function group(nodes, edges, text, chosen) {
  const keyOf = (id) => {
    const prefix = id === chosen ? "" : prefixOf(labelOf(nodes.get(id)), text);
    return prefix && `${id[0]}*:${prefix}`;
  };
  const members = Map.groupBy(nodes.keys(), keyOf);
  const groups = new Map();
  const shown = new Map();
  for (const [id, node] of nodes) {
    const key = keyOf(id);
    const ids = members.get(key);
    if (key && ids.length >= MIN_MEMBERS) {
      groups.set(id, key);
      shown.set(key, { kind: "group", item: { of: node.kind, prefix: key.slice(3), items: ids.map((member) => nodes.get(member).item) } });
    } else {
      shown.set(id, node);
    }
  }
  const merged = new Map();
  const lines = new Map();
  for (const edge of edges) {
    const [from, to] = [groups.get(edge.from) ?? edge.from, groups.get(edge.to) ?? edge.to];
    const key = `${from}\n${to}`;
    merged.set(edge.key, key);
    const line = lines.get(key) ?? { key, from, to, keys: [] };
    line.keys.push(...edge.keys);
    lines.set(key, line);
  }
  return { nodes: shown, edges: [...lines.values()], groups, merged };
}

/** Returns nodes and edges: what the filter matches with its neighbours, and without one all that has a binding. */
function select(exchanges, queues, bindings, clients, text, chosen, grouping) {
  const edges = new Map();
  for (const binding of bindings) {
    if (binding.source === "" && chosen !== "e:") {
      continue; // the default exchange reaches every queue
    }
    const [from, to] = [idOf("exchange", binding.source), idOf(binding.destination_type, binding.destination)];
    const key = `${from}\n${to}`;
    const edge = edges.get(key) ?? { key, from, to, keys: [] };
    edge.keys.push(binding.routing_key);
    edges.set(key, edge);
  }
  for (const client of clients) {
    for (const [queue, number] of client.queues) {
      const [from, to] = [idOf("queue", queue), idOf("client", client.name)];
      edges.set(`${from}\n${to}`, { key: `${from}\n${to}`, from, to, keys: [plural(number, "consumer")] });
    }
  }
  const all = new Map([
    ...exchanges.map((item) => [idOf("exchange", item.name), { kind: "exchange", item }]),
    ...queues.map((item) => [idOf("queue", item.name), { kind: "queue", item }]),
    ...clients.map((item) => [idOf("client", item.name), { kind: "client", item }]),
  ]);
  const wanted = text.toLowerCase();
  const matches = (id) => (all.has(id) ? labelOf(all.get(id)) : id.slice(2)).toLowerCase().includes(wanted);
  const connected = new Set();
  for (const { from, to } of edges.values()) {
    if (matches(from) || matches(to)) {
      connected.add(from).add(to);
    }
  }
  const candidates = [...all.keys()].filter((id) => connected.has(id) || id === chosen || (wanted && matches(id)) || (!wanted && id.startsWith("q:")));
  const order = (id) => (id === chosen ? 0 : connected.has(id) ? 1 : 2);
  candidates.sort((one, other) => order(one) - order(other));
  const known = new Map(candidates.filter((id) => all.has(id)).map((id) => [id, all.get(id)]));
  const between = [...edges.values()].filter(({ from, to }) => known.has(from) && known.has(to));
  const isGrouped = grouping === "1" || (grouping !== "0" && known.size > GROUPED_FROM);
  const found = isGrouped ? group(known, between, wanted, chosen) : { nodes: known, edges: between, groups: NO_GROUPS, merged: NO_GROUPS };
  const nodes = new Map([...found.nodes].slice(0, MAX_NODES));
  const shown = found.edges.filter(({ from, to }) => nodes.has(from) && nodes.has(to));
  return { ...found, nodes, edges: shown, isGrouped, objects: known.size, omitted: found.nodes.size - nodes.size };
}

/** Returns the rates of edges by their keys: messages of each exchange follow the shortest way to each of their queues. */
function ratesOf(bindings, flows) {
  const next = new Map();
  for (const { source, destination, destination_type: kind } of bindings) {
    const from = idOf("exchange", source);
    next.set(from, [...(next.get(from) ?? []), idOf(kind, destination)]);
  }
  const rates = new Map();
  for (const { exchange, queue, rate: value } of flows) {
    for (const key of wayOf(next, idOf("exchange", exchange), idOf("queue", queue))) {
      rates.set(key, (rates.get(key) ?? 0) + value);
    }
  }
  return rates;
}

/** Returns the keys of the edges of the shortest way between two nodes, none if there is no way. */
function wayOf(next, from, to) {
  const before = new Map([[from, null]]);
  for (const node of before.keys()) {
    for (const target of next.get(node) ?? []) {
      if (!before.has(target)) {
        before.set(target, node);
      }
    }
    if (before.has(to)) {
      break;
    }
  }
  const keys = [];
  for (let node = before.has(to) ? to : null; node !== null && before.get(node) !== null; node = before.get(node)) {
    keys.push(`${before.get(node)}\n${node}`);
  }
  return keys;
}

function arrange({ nodes, edges }) {
  const graph = new Graph();
  graph.setGraph({ rankdir: "LR", nodesep: 12, ranksep: 110, marginx: 16, marginy: 16 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const id of nodes.keys()) {
    graph.setNode(id, { width: WIDTH, height: HEIGHT });
  }
  for (const { from, to } of edges) {
    graph.setEdge(from, to);
  }
  layout(graph);
  const { width, height } = graph.graph();
  return {
    width: width || 1,
    height: height || 1,
    places: new Map([...nodes.keys()].map((id) => [id, graph.node(id)])),
    lines: new Map(edges.map(({ key, from, to }) => [key, between(graph.node(from), graph.node(to), graph.edge(from, to).points)])),
  };
}

/** Returns the points of an edge: from the right side of a node to the left side of the other one. */
function between(from, to, points) {
  if (from.x >= to.x) {
    return points; // back to an earlier exchange
  }
  return [{ x: from.x + WIDTH / 2, y: from.y }, ...points.slice(1, -1).slice(1, -1), { x: to.x - WIDTH / 2, y: to.y }];
}

/** Returns a smooth path through points, which leaves and arrives horizontally. */
function curve(points) {
  let text = `M${points[0].x},${points[0].y}`;
  for (let index = 1; index < points.length; index += 1) {
    const [one, next] = [points[index - 1], points[index]];
    const middle = (one.x + next.x) / 2;
    text += ` C${middle},${one.y} ${middle},${next.y} ${next.x},${next.y}`;
  }
  return text;
}

const cut = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

export function MapView() {
  const { vhost = "/", name = "", node: chosen = "", consumers: withConsumers = "", group: grouping = "" } = route.value.query;
  const { value: exchanges, error } = useResource(path("exchanges", vhost), { slow: true });
  const { value: bindings } = useResource(path("bindings", vhost), { slow: true });
  const { value: page } = useResource(
    withQuery(path("queues", vhost), {
      page: 1, page_size: 500, name,
      columns: "name,vhost,messages,messages_ready,messages_unacknowledged,consumers,messages_details.rate,message_stats.publish_details.rate,message_stats.deliver_get_details.rate",
    }),
  );
  const { value: flows } = useResource(has("/leveret/flows/{vhost}") ? path("leveret", "flows", vhost) : null);
  const { value: consumers } = useResource(withConsumers ? path("consumers", vhost) : null);
  const { value: connections } = useResource(withConsumers ? withQuery(path("vhosts", vhost, "connections"), { columns: "name,user_provided_name" }) : null);
  const [key, setKey] = useState("");
  const [properties, setProperties] = useState("");
  const missing = useMissingQueues(vhost, bindings, page, name);
  const queues = useMemo(() => [...(page?.items ?? []), ...missing], [page, missing]);
  const clients = useMemo(() => clientsOf(consumers ?? NONE, connections ?? NONE, queues), [consumers, connections, queues]);
  const ready = exchanges && bindings && page;
  const graph = useMemo(
    () => (ready ? select(exchanges, queues, bindings, clients, name, chosen, grouping) : null),
    [exchanges, queues, bindings, clients, name, chosen, grouping],
  );
  const rates = useMemo(() => {
    const sums = new Map();
    for (const [edge, value] of [...ratesOf(bindings ?? NONE, flows ?? NONE), ...consumerRates(clients, queues)]) {
      const key = graph?.merged.get(edge) ?? edge;
      sums.set(key, (sums.get(key) ?? 0) + value);
    }
    return sums;
  }, [bindings, flows, clients, queues, graph]);
  const shape = graph && [...graph.nodes.keys(), ...graph.edges.map((edge) => edge.key)].join("\n\n");
  const arranged = useMemo(() => graph && arrange(graph), [shape]);
  const isExchange = chosen.startsWith("e:");
  const found = useDestinations({ vhost, exchange: isExchange ? chosen.slice(2) : null, key, properties, exchanges, bindings });
  const lit = useMemo(() => {
    const ids = new Set(found ? [...found.exchanges.map((item) => `e:${item}`), ...found.queues.map((item) => `q:${item}`)] : [chosen]);
    const lines = new Set(found?.bindings.map((item) => `${idOf("exchange", item.source)}\n${idOf(item.destination_type, item.destination)}`));
    for (const client of found ? clients : NONE) {
      for (const queue of found.queues.filter((item) => client.queues.has(item))) {
        ids.add(idOf("client", client.name));
        lines.add(`${idOf("queue", queue)}\n${idOf("client", client.name)}`);
      }
    }
    const shown = (known, key) => known?.get(key) ?? key;
    return { ids: new Set([...ids].map((id) => shown(graph?.groups, id))), lines: new Set([...lines].map((key) => shown(graph?.merged, key))) };
  }, [found, clients, chosen, graph]);
  const unread = page ? page.filtered_count - page.items.length : 0;

  return html`
    <${Title} title="Topology" />
    <div class="toolbar" role="search">
      <input class="filter" type="search" data-filter aria-label="Filter topology" placeholder="Filter  ( / )" value=${name} maxlength="1000" onInput=${(event) => setQuery({ name: event.target.value })} />
      <${VhostChoice} required value=${vhost} onChange=${(value) => setQuery({ vhost: value, node: "" })} />
      <button onClick=${() => setQuery({ node: "e:" })}>Default exchange</button>
      <label class="check">
        <input type="checkbox" checked=${Boolean(withConsumers)} onChange=${(event) => setQuery({ consumers: event.target.checked ? "1" : "" })} />
        <span>Consumers</span>
      </label>
      <label class="check">
        <input type="checkbox" checked=${Boolean(graph?.isGrouped)} onChange=${(event) => setQuery({ group: event.target.checked ? "1" : "0" })} />
        <span>Group by prefix</span>
      </label>
      ${graph && html`<span class="muted" role="status">${plural(graph.objects, "object")}${graph.omitted + unread > 0 ? `, ${count(graph.omitted + unread)} not shown: filter by name` : ""}</span>`}
    </div>
    <${Failure} error=${error} />
    <div class="split">
      ${arranged && graph.nodes.size > 0 && html`<${Drawing} key=${vhost} ...${{ graph, arranged, rates, lit, chosen }} />`}
      ${graph?.nodes.size === 0 && html`<${Note}>${name ? "Nothing matches." : "This vhost has no bindings and no queues yet."}<//>`}
      ${chosen && html`<div class="side"><${Side} ...${{ chosen, vhost, queues, exchanges, clients, found, setKey, setProperties }} /></div>`}
    </div>
  `;
}

const NONE = [];
const NO_GROUPS = new Map();

/** Returns the queues that bindings of the filtered exchanges name, although the filter of queues does not match them. */
function useMissingQueues(vhost, bindings, page, text) {
  const [missing, setMissing] = useState(NONE);
  const wanted = text.toLowerCase();
  const known = new Set(page?.items.map((item) => item.name));
  const names = !bindings || !page || !text
    ? []
    : [...new Set(bindings.filter((item) => item.source.toLowerCase().includes(wanted) && item.destination_type === "queue").map((item) => item.destination))]
        .filter((queue) => !known.has(queue))
        .slice(0, 50);
  const list = names.join("\n");
  useEffect(() => {
    let current = true;
    Promise.allSettled(names.map((queue) => get(path("queues", vhost, queue)))).then((results) => {
      if (current) {
        const found = results.filter((result) => result.status === "fulfilled").map((result) => result.value);
        setMissing(found.length ? found : NONE);
      }
    });
    return () => {
      current = false;
    };
  }, [vhost, list]);
  return missing;
}

function Drawing({ graph, arranged, rates, lit, chosen }) {
  const box = useRef(null);
  const [view, setView] = useState(null);
  const drag = useRef(null);

  /** Shows the whole map, but no smaller than a scale: then from its top left. */
  function fit(least) {
    const { clientWidth: width, clientHeight: height } = box.current;
    const scale = Math.max(least, Math.min(1, width / arranged.width, height / arranged.height));
    setView({ scale, x: Math.max(0, (width - arranged.width * scale) / 2), y: Math.max(0, (height - arranged.height * scale) / 2) });
  }
  function zoom(factor, x = box.current.clientWidth / 2, y = box.current.clientHeight / 2) {
    setView((old) => {
      const scale = Math.max(MIN_SCALE, Math.min(MAX_SCALE, old.scale * factor));
      const part = scale / old.scale;
      return { scale, x: x - (x - old.x) * part, y: y - (y - old.y) * part };
    });
  }
  useEffect(() => fit(READABLE), [arranged]);
  useEffect(() => {
    const element = box.current;
    const onWheel = (event) => {
      event.preventDefault();
      const { left, top } = element.getBoundingClientRect();
      zoom(Math.exp(-event.deltaY / 400), event.clientX - left, event.clientY - top);
    };
    element.addEventListener("wheel", onWheel, { passive: false });
    return () => element.removeEventListener("wheel", onWheel);
  }, []);

  const move = (event) => {
    if (drag.current) {
      const { x, y } = drag.current;
      drag.current = { x: event.clientX, y: event.clientY };
      setView((old) => ({ ...old, x: old.x + event.clientX - x, y: old.y + event.clientY - y }));
    }
  };
  const { scale, x, y } = view ?? { scale: 1, x: 0, y: 0 };
  return html`
    <div class="map" ref=${box}>
      <svg
        role="group"
        aria-label="Exchanges, bindings and queues"
        onPointerDown=${(event) => { drag.current = { x: event.clientX, y: event.clientY }; }}
        onPointerMove=${move}
        onPointerUp=${() => { drag.current = null; }}
        onPointerLeave=${() => { drag.current = null; }}
      >
        <defs>
          <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" markerUnits="userSpaceOnUse" orient="auto">
            <path d="M0,0 L8,4 L0,8 z" fill="currentColor" opacity="0.5" />
          </marker>
        </defs>
        <g transform=${`translate(${x},${y}) scale(${scale})`}>
          ${graph.edges.map((edge) => html`<${Edge} key=${edge.key} edge=${edge} points=${arranged.lines.get(edge.key)} on=${lit.lines.has(edge.key)} perSecond=${rates.get(edge.key) ?? 0} />`)}
          ${[...graph.nodes].map(([id, node]) => html`<${Node} key=${id} ...${{ id, node, place: arranged.places.get(id), on: lit.ids.has(id), chosen: id === chosen }} />`)}
        </g>
      </svg>
      <div class="zoom">
        <button onClick=${() => zoom(1.3)} aria-label="Zoom in">+</button>
        <button onClick=${() => zoom(1 / 1.3)} aria-label="Zoom out">−</button>
        <button onClick=${() => fit(MIN_SCALE)}>Fit</button>
      </div>
    </div>
  `;
}

function Edge({ edge, points, on, perSecond }) {
  if (!points) {
    return null;
  }
  const [one, next] = points.slice(-2);
  const middle = { x: one.x + 0.5 * (next.x - one.x), y: one.y + 0.7 * (next.y - one.y) };
  const text = edge.keys.length === 1 ? edge.keys[0] : plural(edge.keys.length, "key");
  return html`
    <path class="edge ${on ? "on" : ""} ${perSecond > 0 ? "busy" : ""}" d=${curve(points)} marker-end="url(#arrow)"><title>${edge.keys.slice(0, 50).join("\n")}</title></path>
    <svg x=${middle.x - LABEL / 2} y=${middle.y - 16} width=${LABEL} height="30">
      <title>${edge.keys.slice(0, 50).join("\n")}</title>
      ${text && html`<text class="label" x="50%" y="12" text-anchor="middle">${cut(text, 18)}</text>`}
      ${perSecond > 0 && html`<text class="label rate" x="50%" y="26" text-anchor="middle">${perSecond < 1000 ? rate(perSecond) : `${short(perSecond)}/s`}</text>`}
    </svg>
  `;
}

/** Texts and shape of a node by its kind. */
const LOOKS = {
  exchange: (item) => ({ name: exchangeName(item.name), detail: `${item.type}  ${rate(item.message_stats?.publish_in_details?.rate)}`, inset: 18, round: HEIGHT / 2 }),
  queue: (item) => ({ name: item.name, detail: `${plural(item.messages, "message", short)}, ${plural(item.consumers, "consumer", short)}`, inset: 10, round: 4 }),
  group: ({ of: kind, prefix, items }) => ({ name: `${prefix}*`, detail: [plural(items.length, kind), kind === "queue" && plural(sum(items, "messages"), "message", short)].filter(Boolean).join(", "), inset: 14, round: 4 }),
  client: (item) => ({ name: item.title, detail: `${plural(consumersOf(item), "consumer")} of ${item.user}`, inset: 14, round: 12 }),
};

const sum = (items, key) => items.reduce((total, item) => total + (item[key] ?? 0), 0);
const consumersOf = (client) => [...client.queues.values()].reduce((sum, number) => sum + number, 0);

function Node({ id, node, place, on, chosen }) {
  if (!place) {
    return null;
  }
  const { kind, item } = node;
  const { name, detail, inset, round } = LOOKS[kind](item);
  const shown = cut(name, 23);
  // What a group has is shown by its prefix.
  const choose = () => setQuery(kind === "group" ? { name: item.prefix, node: "" } : { node: id });
  return html`
    <g
      class="node ${kind} ${item.of ?? ""} ${on ? "on" : ""}"
      transform=${`translate(${place.x - WIDTH / 2},${place.y - HEIGHT / 2})`}
      role="button"
      tabindex="0"
      aria-pressed=${chosen}
      onClick=${choose}
      onKeyDown=${(event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), choose())}
    >
      <title>${`${name}\n${detail}`}</title>
      ${kind === "group" && html`<rect x="4" y="4" width=${WIDTH} height=${HEIGHT} rx=${round} />`}
      <rect width=${WIDTH} height=${HEIGHT} rx=${round} />
      <svg x=${inset} width=${WIDTH - inset - 8} height=${HEIGHT}>
        <text y="18">${shown}</text>
        <text class="sub" y="33">${cut(detail, 30)}</text>
      </svg>
    </g>
  `;
}

function Side({ chosen, vhost, queues, exchanges, clients, found, setKey, setProperties }) {
  const name = chosen.slice(2);
  const close = html`<button class="quiet" onClick=${() => setQuery({ node: "" })} aria-label="Close">×</button>`;
  if (chosen.startsWith("q:")) {
    const queue = queues.find((item) => item.name === name);
    return html`
      <${Panel} title=${name} actions=${close}>
        ${queue &&
        html`
          <${Facts}
            items=${[
              ["Ready", count(queue.messages_ready)],
              ["Unacked", count(queue.messages_unacknowledged)],
              ["Growth", growth(queue.messages_details?.rate)],
              ["Publish", rate(queue.message_stats?.publish_details?.rate)],
              ["Consumers", count(queue.consumers)],
            ]}
          />
        `}
        <p><a href=${link(["queues", vhost, name])}>Open queue</a></p>
      <//>
    `;
  }
  if (chosen.startsWith("c:")) {
    const client = clients.find((item) => item.name === name);
    return html`
      <${Panel} title=${client?.title ?? name} actions=${close}>
        ${client && html`<${Facts} items=${[["User", client.user], ...[...client.queues].map(([queue, number]) => [queue, plural(number, "consumer")])]} />`}
        <p><a href=${link(["connections", name])}>Open connection</a></p>
      <//>
    `;
  }
  const exchange = exchanges?.find((item) => item.name === name);
  return html`
    <${Panel} title=${exchangeName(name)} actions=${close}>
      <div class="form">
        <div class="badges">${exchange && html`<${Badge}>${exchange.type}<//>`}<a href=${link(["exchanges", vhost, exchangePath(name)])}>Open exchange</a></div>
        <h3>Test message</h3>
        <p class="small muted">The map shows where the routing key and the headers lead before you publish.</p>
        <${PublishForm} key=${chosen} vhost=${vhost} exchange=${name} onRoutingKey=${setKey} onProperties=${setProperties} />
        <h3>Destinations</h3>
        <${Destinations} found=${found} vhost=${vhost} />
      </div>
    <//>
  `;
}

// Tables of bindings.

import { removeBinding } from "../actions.js";
import { plain } from "../format.js";
import { html } from "../html.js";
import { copyAs } from "./copy.js";
import { ExchangeLink, QueueLink } from "./parts.js";
import { useRoles } from "./roles.js";
import { SmallTable } from "./table.js";

const FROM = { id: "source", title: "From exchange", cell: (row) => html`<${ExchangeLink} vhost=${row.vhost} name=${row.source} />` };
const TO = {
  id: "destination",
  title: "To",
  cell: (row) =>
    row.destination_type === "queue"
      ? html`<${QueueLink} vhost=${row.vhost} name=${row.destination} />`
      : html`<${ExchangeLink} vhost=${row.vhost} name=${row.destination} />`,
};
const REST = [
  { id: "destination_type", title: "Kind", width: 90, rank: 2 },
  { id: "routing_key", title: "Routing key", cell: (row) => html`<code title=${row.routing_key}>${row.routing_key}</code>` },
  { id: "arguments", title: "Arguments", rank: 1, cell: (row) => (Object.keys(row.arguments).length ? html`<code>${plain(row.arguments)}</code>` : "") },
];

/** Bindings of a vhost with their sources (`from`) or their destinations. */
export function BindingTable({ bindings, from, vhost }) {
  const may = useRoles(vhost, [...new Set((bindings ?? []).flatMap(({ source, destination }) => (source ? [source, destination] : [])))]);
  const mayRemove = ({ source, destination }) => may(source, "administrator", "read") && may(destination, "administrator", "write");
  const remove = {
    id: "remove",
    title: "",
    header: html`<span class="visually-hidden">Copy or remove</span>`,
    width: 170,
    num: true,
    sortable: false,
    cell: (row) => row.source !== "" && html`
        <button class="link" onClick=${() => copyAs("binding", row)}>Copy as…</button>${" "}
        <button class="link" onClick=${() => removeBinding(row)} disabled=${!mayRemove(row)}>Remove…</button>
      `,
  };
  return html`
    <${SmallTable}
      label="Bindings"
      rows=${bindings ?? []}
      columns=${[from ? FROM : TO, ...(from ? REST.slice(1) : REST), remove]}
      keyOf=${(row) => [row.source, row.destination_type, row.destination, row.properties_key].join("\n")}
      initial=${from ? "source" : "destination"}
      loading=${bindings === undefined}
      empty="No bindings."
    />
  `;
}

// The audit log: who changed what, when and from where.

import { withQuery } from "../api.js";
import { useResource } from "../data.js";
import { plain, plural, time } from "../format.js";
import { html } from "../html.js";
import { isRestorable, obstacle, restore } from "../restore.js";
import { route, setQuery } from "../route.js";
import { ChangeForm, openDialog } from "../ui/dialog.js";
import { FilterField } from "../ui/list.js";
import { Facts, Failure, Note, Title } from "../ui/parts.js";
import { useRoles } from "../ui/roles.js";
import { Table } from "../ui/table.js";

const PAGE_SIZE = 100;
const FILTERS = [
  ["user", "User"],
  ["action", "Action"],
  ["object", "Object"],
  ["since", "Since (2026-11-25T12:00)"],
];

/** Returns the keys of two definitions with different values, each with both values. */
function differences(before, after) {
  const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
  const one = isObject(before) ? before : before === null ? {} : { value: before };
  const other = isObject(after) ? after : after === null ? {} : { value: after };
  return [...new Set([...Object.keys(one), ...Object.keys(other)])]
    .filter((key) => JSON.stringify(one[key]) !== JSON.stringify(other[key]))
    .map((key) => [key, one[key], other[key]]);
}

const shown = (value) => (value === undefined ? "–" : plain(value));

function Change({ record }) {
  const changed = differences(record.before, record.after);
  return html`
    <${Facts}
      items=${[
        ["Time", time(record.time)],
        ["User", record.user],
        ["From", record.source],
        ["Action", html`<code>${record.action}</code>`],
        ["Object", `${record.kind} ${record.name}`],
        ["Vhost", record.vhost],
      ]}
    />
    <table class="diff">
      <caption class="visually-hidden">Changed keys</caption>
      <thead><tr><th scope="col">Key</th><th scope="col">Before</th><th scope="col">After</th></tr></thead>
      <tbody>
        ${changed.map(([key, before, after]) => html`<tr key=${key}><th scope="row">${key}</th><td><code>${shown(before)}</code></td><td><code>${shown(after)}</code></td></tr>`)}
      </tbody>
    </table>
    ${isRestorable(record) && html`<${Restore} record=${record} />`}
  `;
}

/** The names and permissions that a deleted object needs to be declared again; policies need none. */
function needsOf({ kind, name, before }) {
  if (kind === "binding") {
    return [[before.source, "read"], [before.destination, "write"]];
  }
  return kind === "queue" || kind === "exchange" ? [[name, "configure"]] : [];
}

/** The form that declares a deleted object again. */
function Restore({ record }) {
  const reason = obstacle(record);
  const needs = reason ? [] : needsOf(record);
  const may = useRoles(record.vhost, needs.map(([name]) => name));
  if (reason) {
    return html`<${Note}>This object cannot be restored from the log. ${reason}<//>`;
  }
  const { bindings, more_bindings: more } = record.before;
  return html`
    <${ChangeForm} label="Restore" submit=${() => restore(record)} disabled=${!needs.every(([name, permission]) => may(name, "administrator", permission))}>
      <p>
        Declares the ${record.kind.replace("_", " ")} again as it was${bindings?.length > 0 ? `, with ${plural(bindings.length, "binding")}` : ""}.
        ${record.kind === "queue" && " Its messages are not restored."}
        ${more && " The log does not keep its further bindings."}
      </p>
    <//>
  `;
}

const COLUMNS = [
  { id: "time", title: "Time", width: 180, value: (row) => time(row.time) },
  { id: "user", title: "User", width: 120 },
  { id: "action", title: "Action", width: 200, cell: (row) => html`<button class="link" data-row title=${row.action} onClick=${() => openDialog("Change", () => html`<${Change} record=${row} />`)}>${row.action}</button>` },
  { id: "name", title: "Object", cell: (row) => html`<span title=${row.name}>${row.name}</span>` },
  { id: "vhost", title: "Vhost", width: 100, rank: 3 },
  { id: "source", title: "From", width: 210, rank: 4 },
  { id: "changes", title: "Changed", rank: 2, value: (row) => (row.before === null ? "created" : row.after === null ? "deleted" : differences(row.before, row.after).map(([key]) => key).join(", ")) },
];

export function AuditView() {
  const { query } = route.value;
  const page = Number(query.page) || 1;
  const filters = Object.fromEntries(FILTERS.map(([name]) => [name, query[name]]));
  const { value, error } = useResource(withQuery("/leveret/audit", { ...filters, page, page_size: PAGE_SIZE }));
  const items = value?.items ?? [];
  return html`
    <${Title} title="Audit log" />
    <div class="toolbar" role="search">
      ${FILTERS.map(
        ([name, title], index) => html`
          <${FilterField} key=${name} class="filter" data-filter=${index === 0 || undefined} aria-label=${title} placeholder=${title} maxlength="255" value=${query[name] ?? ""} onChoice=${(chosen) => setQuery({ [name]: chosen, page: "" })} />
        `,
      )}
      ${value && html`<span class="muted" role="status">${plural(value.total_count, "change")}</span>`}
      ${value?.page_count > 1 &&
      html`
        <button disabled=${page <= 1} onClick=${() => setQuery({ page: page - 1 })}>Newer</button>
        <span class="muted">${page} / ${value.page_count}</span>
        <button disabled=${page >= value.page_count} onClick=${() => setQuery({ page: page + 1 })}>Older</button>
      `}
    </div>
    <${Failure} error=${error} />
    <${Table} label="Changes" fill columns=${COLUMNS} total=${items.length} row=${(index) => items[index]} keyOf=${(row) => row.id} empty="No change matches." loading=${!value} />
  `;
}

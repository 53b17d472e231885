// Views of lists: filter, vhost, order and export, with their state in the URL.

import { all, path, withQuery } from "../api.js";
import { csv, save } from "../csv.js";
import { usePages, useResource } from "../data.js";
import { plain, plural } from "../format.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { route, setQuery } from "../route.js";
import { Failure, Title, toast } from "./parts.js";
import { sortRows, Table, valueOf } from "./table.js";

// Milliseconds between the last key and the request.
const TYPING_DELAY = 200;

/** Returns the order that the URL asks for. */
function orderOf(query, columns, initial) {
  const sort = query.sort ?? initial;
  return { sort, descending: query.desc === "1", column: columns.find(({ id }) => id === sort) };
}

function onSort(column, { sort, descending }) {
  const next = column.id === sort ? !descending : Boolean(column.num);
  setQuery({ sort: column.id, desc: next ? "1" : "" });
}

/**
 * A list of one kind of object.
 *
 * Args (as properties):
 *   kind: The collection in the API: "queues". With `vhosts`, `/queues/VHOST` lists those of a vhost.
 *   noun: The object's name in texts: "queue".
 *   paged: Whether the API filters, sorts and pages; otherwise the browser does, on the whole list.
 *   keep(row): Which rows of a whole list to show.
 *   actions, tools(context): More buttons; `tools` gets `{read, parameters, target}` of the list as it is filtered.
 */
export function ListView({
  title, kind, noun, columns, keyOf, vhosts = true, paged = true, keep, sort = "name", query = {}, actions, tools, intro, empty,
}) {
  const parameters = route.value.query;
  const target = vhosts && parameters.vhost ? path(...kind.split("/"), parameters.vhost) : `/${kind}`;
  const order = orderOf(parameters, columns, sort);
  const Body = paged ? PagedBody : WholeBody;
  return html`
    <${Title} title=${title} actions=${actions} />
    ${intro}
    <${Body}
      key=${kind + title}
      ...${{ title, noun, columns, keyOf, vhosts, target, order, parameters, keep, query, tools, empty }}
    />
  `;
}

function PagedBody({ title, noun, columns, keyOf, vhosts, target, order, parameters, query, tools, empty }) {
  const wanted = {
    ...query,
    name: parameters.name,
    use_regex: parameters.name && parameters.regex === "1" ? "true" : "",
    sort: order.sort,
    sort_reverse: order.descending ? "true" : "",
  };
  const pages = usePages(target, wanted);
  const read = () => all(target, wanted);
  return html`
    <${Toolbar} ...${{ title, noun, columns, vhosts, parameters, read }} total=${pages.total} regex>
      ${tools?.({ target, wanted, read, total: pages.total })}
    <//>
    <${Failure} error=${pages.error} />
    <${Table}
      fill
      label=${title}
      ...${{ columns, keyOf, empty }}
      total=${pages.total}
      row=${(index) => pages.row(index)}
      show=${(first, last) => pages.show(first, last)}
      loading=${!pages.loaded}
      sort=${order.sort}
      descending=${order.descending}
      onSort=${(column) => onSort(column, order)}
    />
  `;
}

function WholeBody({ title, noun, columns, keyOf, vhosts, target, order, parameters, keep, query, tools, empty }) {
  const { value, error } = useResource(withQuery(target, query));
  const text = (parameters.name ?? "").toLowerCase();
  const matches = (row) => columns.some((column) => plain(valueOf(column, row)).toLowerCase().includes(text));
  const found = (value ?? []).filter((row) => (!keep || keep(row)) && (!text || matches(row)));
  const rows = order.column ? sortRows(found, order.column, order.descending) : found;
  const read = async () => rows;
  return html`
    <${Toolbar} ...${{ title, noun, columns, vhosts, parameters, read }} total=${rows.length}>
      ${tools?.({ target, read, total: rows.length })}
    <//>
    <${Failure} error=${error} />
    <${Table}
      fill
      label=${title}
      ...${{ columns, keyOf, empty }}
      total=${rows.length}
      row=${(index) => rows[index]}
      loading=${value === undefined}
      sort=${order.sort}
      descending=${order.descending}
      onSort=${(column) => onSort(column, order)}
    />
  `;
}

function Toolbar({ title, noun, columns, vhosts, parameters, regex, total, read, children }) {
  const [busy, setBusy] = useState(false);
  async function exportCsv() {
    setBusy(true);
    try {
      const shown = columns.filter((column) => column.csv !== false);
      const rows = (await read()).map((row) => shown.map((column) => valueOf(column, row)));
      save(`${title.toLowerCase().replaceAll(" ", "-")}.csv`, csv(shown.map((column) => column.title), rows), "text/csv");
    } catch (error) {
      toast(error.message, "bad");
    }
    setBusy(false);
  }
  return html`
    <div class="toolbar" role="search">
      <${FilterInput} value=${parameters.name ?? ""} label=${`Filter ${title.toLowerCase()}`} />
      ${regex &&
      html`
        <label class="check">
          <input type="checkbox" checked=${parameters.regex === "1"} onChange=${(event) => setQuery({ regex: event.target.checked ? "1" : "" })} />
          <span>Regular expression</span>
        </label>
      `}
      ${vhosts && html`<${VhostChoice} value=${parameters.vhost ?? ""} />`}
      <span class="muted" role="status">${plural(total, noun)}</span>
      <span class="grow"></span>
      ${children}
      <button onClick=${exportCsv} disabled=${busy || total === 0}>Export CSV</button>
    </div>
  `;
}

function FilterInput({ value, label }) {
  const [text, setText] = useState(value);
  const timer = useRef(0);
  useEffect(() => {
    if (!timer.current) {
      setText(value); // another location
    }
  }, [value]);
  return html`
    <input
      class="filter"
      type="search"
      data-filter
      aria-label=${label}
      placeholder="Filter  ( / )"
      value=${text}
      maxlength="1000"
      spellcheck=${false}
      onInput=${({ target }) => {
        setText(target.value);
        clearTimeout(timer.current);
        timer.current = setTimeout(() => {
          timer.current = 0;
          setQuery({ name: target.value });
        }, TYPING_DELAY);
      }}
    />
  `;
}

export function VhostChoice({ value, required, onChange = (name) => setQuery({ vhost: name }) }) {
  const { value: vhosts } = useResource(withQuery("/vhosts", { columns: "name" }), { slow: true });
  const names = (vhosts ?? []).map(({ name }) => name);
  if (value && !names.includes(value)) {
    names.push(value);
  }
  return html`
    <select aria-label="Vhost" value=${value} onChange=${(event) => onChange(event.target.value)}>
      ${!required && html`<option value="" selected=${value === ""}>All vhosts</option>`}
      ${names.map((name) => html`<option key=${name} value=${name} selected=${name === value}>${name}</option>`)}
    </select>
  `;
}


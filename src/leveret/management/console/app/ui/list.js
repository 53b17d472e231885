// Views of lists: filter, vhost, order and export, with their state in the URL.

import { all, path, withQuery } from "../api.js";
import { csv, save } from "../csv.js";
import { usePages, useResource } from "../data.js";
import { favouritePaths, favourites, listAll, setFavourite } from "../favourites.js";
import { plain, plural } from "../format.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { route, setQuery } from "../route.js";
import { Failure, Note, Title, toast } from "./parts.js";
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
 *   starred: The kind of favourites that the list can be limited to: "queues".
 *   actions, tools(context): More buttons; `tools` gets `{read(columns), total}` of the list as it is filtered.
 */
export function ListView({
  title, kind, noun, columns, keyOf, vhosts = true, paged = true, keep, sort = "name", query = {}, starred, actions, tools, intro, empty,
}) {
  const parameters = route.value.query;
  const target = vhosts && parameters.vhost ? path(...kind.split("/"), parameters.vhost) : `/${kind}`;
  const order = orderOf(parameters, columns, sort);
  const Body = starred && parameters.favourites === "1" ? FavouriteBody : paged ? PagedBody : WholeBody;
  return html`
    <${Title} title=${title} actions=${actions} />
    ${intro}
    <${Body}
      key=${kind + title}
      ...${{ title, noun, columns, keyOf, vhosts, target, order, parameters, keep, query, starred, tools, empty }}
    />
  `;
}

function PagedBody({ title, noun, columns, keyOf, vhosts, target, order, parameters, query, starred, tools, empty }) {
  const wanted = {
    ...query,
    name: parameters.name,
    use_regex: parameters.name && parameters.regex === "1" ? "true" : "",
    sort: order.sort,
    sort_reverse: order.descending ? "true" : "",
  };
  const pages = usePages(target, wanted);
  const read = (names) => all(target, names ? { ...wanted, columns: names } : wanted);
  return html`
    <${Toolbar} ...${{ title, noun, columns, vhosts, parameters, starred, read }} total=${pages.total} regex>
      ${tools?.({ read, total: pages.total })}
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

function WholeBody({ target, query, ...rest }) {
  const { value, error } = useResource(withQuery(target, query));
  return html`<${KnownRows} ...${rest} rows=${value} error=${error} />`;
}

/** The favourites of the user, and a note about those that the API does not list any more. */
function FavouriteBody({ target, query, starred, parameters: { regex, ...parameters }, ...rest }) {
  const { vhost } = parameters;
  const wanted = favourites().filter((item) => item.kind === starred && (!vhost || item.vhost === vhost));
  const paths = favouritePaths(target, query, wanted);
  const { value, error } = useResource(paths.length > 0 ? paths.join("\n") : null, { readPath: (joined, options) => listAll(joined.split("\n"), options) });
  const known = new Set(wanted.map(placeOf));
  const rows = paths.length > 0 ? value?.filter((row) => known.has(placeOf(row))) : [];
  const listed = new Set((rows ?? []).map(placeOf));
  const missing = rows && !error ? wanted.filter((item) => !listed.has(placeOf(item))) : [];
  const forget = () => missing.forEach(({ vhost: place, name }) => setFavourite(starred, place, name, false));
  return html`
    ${missing.length > 0 &&
    html`
      <${Note}>
        Favourites that do not exist any more, or that you may not see: ${missing.map((item) => `${item.name} in ${item.vhost}`).join(", ")}
        ${" "}<button onClick=${forget}>Forget them</button>
      <//>
    `}
    <${KnownRows}
      ...${rest}
      ...${{ starred, parameters, error, rows }}
      matches=${(row, text) => row.name.toLowerCase().includes(text)}
      readRows=${async (names) => (await listAll(favouritePaths(target, { columns: names }, wanted))).filter((row) => known.has(placeOf(row)))}
      empty="No favourite. Choose the star of a row to add one."
    />
  `;
}

const placeOf = ({ vhost, name }) => `${vhost}\n${name}`;

/** A list whose rows are all known. `readRows(columns)` returns them with other columns. */
function KnownRows({ title, noun, columns, keyOf, vhosts, order, parameters, keep, starred, tools, empty, rows: all, error, matches, readRows }) {
  const text = (parameters.name ?? "").toLowerCase();
  const isMatch = matches ?? ((row) => columns.some((column) => plain(valueOf(column, row)).toLowerCase().includes(text)));
  const found = (all ?? []).filter((row) => (!keep || keep(row)) && (!text || isMatch(row, text)));
  const rows = order.column ? sortRows(found, order.column, order.descending) : found;
  const shown = new Set(rows.map(keyOf));
  const read = async (names) => (names ? (await readRows(names)).filter((row) => shown.has(keyOf(row))) : rows);
  return html`
    <${Toolbar} ...${{ title, noun, columns, vhosts, parameters, starred, read }} total=${rows.length}>
      ${tools?.({ read, total: rows.length })}
    <//>
    <${Failure} error=${error} />
    <${Table}
      fill
      label=${title}
      ...${{ columns, keyOf, empty }}
      total=${rows.length}
      row=${(index) => rows[index]}
      loading=${all === undefined}
      sort=${order.sort}
      descending=${order.descending}
      onSort=${(column) => onSort(column, order)}
    />
  `;
}

function Toolbar({ title, noun, columns, vhosts, parameters, regex, starred, total, read, children }) {
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
      ${starred &&
      html`
        <label class="check">
          <input type="checkbox" checked=${parameters.favourites === "1"} onChange=${(event) => setQuery({ favourites: event.target.checked ? "1" : "" })} />
          <span>Favourites</span>
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

// The view in the address. The browser announces a link's view a little after it has changed the address.
const place = () => location.hash.split("?")[0];

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
        const here = place();
        timer.current = setTimeout(() => {
          timer.current = 0;
          if (place() === here) {
            setQuery({ name: target.value });
          }
        }, TYPING_DELAY);
      }}
    />
  `;
}

/** A filter that takes effect with Enter, or when the field is left. `value` is the one in effect. */
export function FilterField({ value, onChoice, ...rest }) {
  // The view is rendered again while the user types.
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  return html`
    <input
      ...${rest}
      type="search"
      value=${text}
      spellcheck=${false}
      onInput=${(event) => setText(event.target.value)}
      onChange=${(event) => onChoice(event.target.value)}
    />
  `;
}

/** The vhosts to choose from: those of which `may` is true. */
export function VhostChoice({ value, required, may = () => true, onChange = (name) => setQuery({ vhost: name }) }) {
  const { value: vhosts } = useResource(withQuery("/vhosts", { columns: "name" }), { slow: true });
  const names = (vhosts ?? []).map(({ name }) => name).filter(may);
  if (value && !names.includes(value)) {
    names.push(value);
  }
  return html`
    <select aria-label="Vhost" title=${value || "All vhosts"} value=${value} onChange=${(event) => onChange(event.target.value)}>
      ${!required && html`<option value="" selected=${value === ""}>All vhosts</option>`}
      ${names.map((name) => html`<option key=${name} value=${name} selected=${name === value}>${name}</option>`)}
    </select>
  `;
}


// A table that renders only its visible rows, so that lists of any length scroll smoothly.

import { plain, at } from "../format.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../html.js";

// Height of a row in pixels; --row in the style sheet.
const ROW = 32;
const HEADER = 32;
// Rows rendered above and below the visible ones.
const OVERSCAN = 12;
// Minimum width in pixels of a column without `width` and `min`; such columns share the remaining space.
const MIN_FLEXIBLE = 170;

// Width in pixels of a digit, and of the sides of a cell.
const DIGIT = 9;
const PADDING = 21;

// Numbers that say that nothing happens.
const ZERO = /^(0( B)?(\/s)?|–)$/;

export const valueOf = (column, row) => (column.value ? column.value(row) : at(row, column.id));

const contentOf = (column, row) => (column.cell ? column.cell(row) : plain(valueOf(column, row)));

/** Returns the columns with room for the numbers in the rows. */
const withRoom = (columns, items) =>
  columns.map((column) => {
    const lengths = column.num && column.width ? items.map((item) => contentOf(column, item)?.length ?? 0) : [];
    return lengths.length > 0 ? { ...column, width: Math.max(column.width, PADDING + DIGIT * Math.max(...lengths)) } : column;
  });

/** Returns the columns that fit a width. Columns with a higher `rank` are dropped first; those without one always stay. */
function fitting(columns, width) {
  const shown = [...columns];
  const needed = () => shown.reduce((sum, column) => sum + (column.width ?? column.min ?? MIN_FLEXIBLE), 0);
  while (needed() > width) {
    const rank = Math.max(...shown.map((column) => column.rank ?? 0));
    if (rank === 0) {
      break;
    }
    shown.splice(shown.findLastIndex((column) => column.rank === rank), 1);
  }
  return [shown, needed()];
}

/**
 * Args (as properties):
 *   columns: `{id, title, width, min, rank, num, value(row), cell(row), sortable}`; `id` is the key by which the API sorts.
 *   total, row(index), show(first, last): the rows; `row` returns undefined for one that is still read.
 *   sort, descending, onSort(id): the order.
 *   keyOf(row): the identity of a row.
 *   fill: whether the table takes the rest of the view; otherwise it is part of a panel.
 */
export function Table({ label, columns, total, row, show, sort, descending, onSort, keyOf, fill, empty, loading }) {
  const region = useRef(null);
  const [box, setBox] = useState({ top: 0, height: 600, width: 1000 });

  useLayoutEffect(() => {
    const element = region.current;
    const measure = () => {
      const top = Math.floor(element.scrollTop / ROW) * ROW;
      setBox((old) => {
        const found = { top, height: element.clientHeight, width: element.clientWidth };
        return Object.keys(found).every((key) => found[key] === old[key]) ? old : found;
      });
    };
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    element.addEventListener("scroll", measure, { passive: true });
    measure();
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", measure);
    };
  }, []);

  const visible = Math.ceil((fill ? box.height : Math.max(box.height, 420)) / ROW) + 1;
  const first = Math.max(0, Math.min(Math.floor(box.top / ROW), Math.max(0, total - visible)) - OVERSCAN);
  const last = Math.min(total, first + visible + 2 * OVERSCAN);
  useEffect(() => {
    show?.(first, last);
  });

  const indices = Array.from({ length: last - first }, (_, offset) => first + offset);
  const [shown, needed] = fitting(withRoom(columns, indices.map(row).filter(Boolean)), box.width);
  const spacer = (rows) =>
    rows > 0 && html`<tr class="spacer" aria-hidden="true"><td colspan=${shown.length} style=${{ height: `${rows * ROW}px` }}></td></tr>`;

  return html`
    <div class="table ${fill ? "fill" : "inside"}" ref=${region} tabindex="0" role=${fill ? "region" : "group"} aria-label=${label}>
      <table aria-rowcount=${total + 1} style=${{ minWidth: `${Math.min(needed, 2000)}px` }}>
        <colgroup>
          ${shown.map((column) => html`<col key=${column.id} style=${{ width: column.width ? `${column.width}px` : "auto" }} />`)}
        </colgroup>
        <thead>
          <tr aria-rowindex="1" style=${{ height: `${HEADER}px` }}>
            ${shown.map((column) => html`<${Header} key=${column.id} ...${{ column, sort, descending, onSort }} />`)}
          </tr>
        </thead>
        <tbody>
          ${spacer(first)}
          ${indices.map((index) => {
            const item = row(index);
            return html`
              <tr key=${item ? keyOf(item) : index} aria-rowindex=${index + 2}>
                ${shown.map((column) => {
                  const content = item === undefined ? "" : contentOf(column, item);
                  return html`<td key=${column.id} title=${typeof content === "string" ? content : undefined} class="${column.num ? "num" : ""} ${ZERO.test(content) ? "zero" : ""}">${content}</td>`;
                })}
              </tr>
            `;
          })}
          ${spacer(total - last)}
        </tbody>
      </table>
      ${total === 0 && html`<div class="none">${loading ? "Loading…" : (empty ?? "none")}</div>`}
    </div>
  `;
}

function Header({ column, sort, descending, onSort }) {
  const style = column.num ? "num" : "";
  if (!onSort || column.sortable === false) {
    return html`<th class=${style} scope="col">${column.header ?? column.title}</th>`;
  }
  const order = sort === column.id ? (descending ? "descending" : "ascending") : "none";
  return html`
    <th class=${style} scope="col" aria-sort=${order}>
      <button onClick=${() => onSort(column)} title=${column.hint}>
        ${column.title}<span class="arrow" aria-hidden="true">${descending ? "▼" : "▲"}</span>
      </button>
    </th>
  `;
}

/** A table of rows that are all known, sorted in the browser. */
export function SmallTable({ rows, initial, initialDescending = false, ...rest }) {
  const [[sort, descending], setOrder] = useState([initial, initialDescending]);
  const column = rest.columns.find(({ id }) => id === sort);
  const sorted = column ? sortRows(rows, column, descending) : rows;
  return html`
    <${Table}
      ...${rest}
      total=${sorted.length}
      row=${(index) => sorted[index]}
      sort=${sort}
      descending=${descending}
      onSort=${(chosen) => setOrder([chosen.id, chosen.id === sort ? !descending : Boolean(chosen.num)])}
    />
  `;
}

const texts = new Intl.Collator("en", { numeric: true });

/** Returns rows in the order of a column. */
export function sortRows(rows, column, descending) {
  const compare = (one, other) => {
    const [left, right] = [valueOf(column, one), valueOf(column, other)];
    if (typeof left === "number" && typeof right === "number") {
      return left - right;
    }
    return texts.compare(plain(left), plain(right));
  };
  return [...rows].sort((one, other) => (descending ? -compare(one, other) : compare(one, other)));
}

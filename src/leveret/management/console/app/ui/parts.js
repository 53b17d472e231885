// Small parts of views.

import { count, exchangeName, exchangePath, plain } from "../format.js";
import { html, signal } from "../html.js";
import { link } from "../route.js";

export const Badge = ({ tone = "", title, children }) => html`<span class="badge ${tone}" title=${title ?? [children].flat().join("")}>${children}</span>`;

export const Panel = ({ title, actions, flush, children }) => html`
  <section class="panel" aria-label=${title}>
    <header>
      <h2 title=${title}>${title}</h2>
      ${actions && html`<div class="actions">${actions}</div>`}
    </header>
    ${flush ? children : html`<div class="body">${children}</div>`}
  </section>
`;

/** A row of numbers: `[[label, text, detail], ...]`. */
export const Stats = ({ items }) => html`
  <dl class="stats">
    ${items.map(
      ([label, value, detail]) => html`
        <div class="stat" key=${label}>
          <dt>${label}</dt>
          <dd>${value}${detail && html` <small>${detail}</small>`}</dd>
        </div>
      `,
    )}
  </dl>
`;

/** Properties with their values: `[[label, vnode], ...]`. Those without a value are omitted. */
export const Facts = ({ items }) => html`
  <dl class="facts">
    ${items
      .filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false)
      .map(
        ([label, value]) => html`
          <dt>${label}</dt>
          <dd>${value === true ? "yes" : value}</dd>
        `,
      )}
  </dl>
`;

/** The keys and dropped messages of a queue or an exchange that drops duplicates, as `Facts` and `Stats` show them. */
export const deduplicationOf = ({ deduplication_keys: keys, dropped_duplicates: dropped }) =>
  keys === undefined ? [] : [["Deduplication keys", count(keys)], ["Dropped duplicates", count(dropped)]];

/** The entries of an object as facts. */
export const Entries = ({ object, none = "none" }) => {
  const entries = Object.entries(object ?? {});
  return entries.length
    ? html`<${Facts} items=${entries.map(([key, value]) => [key, html`<code>${plain(value)}</code>`])} />`
    : html`<span class="muted">${none}</span>`;
};

export const Note = ({ tone = "", children }) => html`<div class="note ${tone}" role=${tone === "bad" ? "alert" : "note"}>${children}</div>`;

/** Findings of a diagnosis: sentences. */
export const Findings = ({ texts }) => texts.length > 0 && html`<${Note} tone="warn">${texts.map((text) => html`<p key=${text}>${text}</p>`)}<//>`;

/** An error of the API as it is. A missing feature shows nothing. */
export const Failure = ({ error }) => error && html`<${Note} tone="bad">${error.message}<//>`;

/** Heading of a view, with the way to it, the star of a favourite, and its actions. */
export const Title = ({ crumb, star, title, badges, actions }) => html`
  <div class="title">
    ${crumb && html`<nav class="crumb" aria-label="Breadcrumb">${crumb}</nav>`}
    ${star}
    <h1 title=${title}>${title}</h1>
    ${badges && html`<span class="badges">${badges}</span>`}
    ${actions && html`<div class="actions">${actions}</div>`}
  </div>
`;

/** Tabs of a view, each with a link: `[[id, title], ...]`. */
export const Tabs = ({ label, parts, items, current }) => html`
  <nav class="tabs" aria-label=${label}>
    ${items.map(
      ([id, title]) => html`
        <a href=${link(parts, { tab: id })} aria-current=${id === current ? "page" : undefined}>${title}</a>
      `,
    )}
  </nav>
`;

export const QueueLink = ({ vhost, name }) =>
  html`<a href=${link(["queues", vhost, name])} title=${name} data-row>${name}</a>`;

export const ExchangeLink = ({ vhost, name }) =>
  html`<a href=${link(["exchanges", vhost, exchangePath(name)])} title=${name} data-row>${exchangeName(name)}</a>`;

export const ConnectionLink = ({ name, children }) =>
  html`<a href=${link(["connections", name])} title=${name} data-row>${children ?? name}</a>`;

export const UserLink = ({ name }) => html`<a href=${link(["users", name])} title=${name} data-row>${name}</a>`;

/** Features of a queue or an exchange as badges. */
export const Features = ({ object }) => html`
  ${object.durable && html`<${Badge} title="survives a restart of the broker">durable<//>`}
  ${object.auto_delete && html`<${Badge} title="deleted with its last user">auto-delete<//>`}
  ${object.exclusive && html`<${Badge} title="used by one connection">exclusive<//>`}
  ${object.internal && html`<${Badge} title="takes messages from exchanges only">internal<//>`}
`;

const toasts = signal([]);
const TOAST_TIME = 6000;
let next = 0;

/** Shows a message for some seconds. An error stays until it is dismissed, or until something succeeds. */
export function toast(text, tone = "") {
  next += 1;
  const id = next;
  const others = tone === "bad" ? toasts.value : toasts.value.filter((item) => item.tone !== "bad");
  toasts.value = [...others.slice(-3), { id, text, tone }];
  if (tone !== "bad") {
    setTimeout(() => dismiss(id), TOAST_TIME);
  }
}

function dismiss(id) {
  toasts.value = toasts.value.filter((item) => item.id !== id);
}

export const Toasts = () => html`
  <div class="toasts" role="status" aria-live="polite">
    ${toasts.value.map(
      ({ id, text, tone }) => html`
        <div class="note ${tone}" key=${id}>
          <span>${text}</span>
          <button class="quiet" onClick=${() => dismiss(id)} aria-label="Dismiss">×</button>
        </div>
      `,
    )}
  </div>
`;

/** The column of a list with the buttons that change a row. */
export const changeColumn = (cell, width = 168) => ({
  id: "change",
  title: "",
  header: html`<span class="visually-hidden">Change</span>`,
  width,
  num: true,
  sortable: false,
  csv: false,
  cell,
});

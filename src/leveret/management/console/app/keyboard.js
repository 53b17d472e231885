// Keys: `/` to filter, `g q` to go to a view, Ctrl-K for the palette, `?` for the list of keys.

import { get, withQuery } from "./api.js";
import { favourites } from "./favourites.js";
import { exchangeName, exchangePath } from "./format.js";
import { html, useEffect, useMemo, useState } from "./html.js";
import { refresh } from "./live.js";
import { go } from "./route.js";
import { user } from "./session.js";
import { toggleTheme } from "./theme.js";
import { closeDialog, isDialogOpen, openDialog } from "./ui/dialog.js";
import { VIEWS } from "./views.js";

// Milliseconds in which the second key of a pair must follow.
const PAIR_TIMEOUT = 1200;
const MAX_FOUND = 8;
const TYPING_DELAY = 150;

const shownViews = () => VIEWS.filter(({ shown }) => shown());

let pairUntil = 0;

export function installKeys() {
  document.addEventListener("keydown", (event) => {
    if (!user.value) {
      return;
    }
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      openPalette();
      return;
    }
    const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (typing || isDialogOpen() || event.ctrlKey || event.metaKey || event.altKey) {
      if (typing && event.key === "Escape") {
        event.target.blur();
      }
      return;
    }
    if (press(event.key)) {
      event.preventDefault();
    }
  });
}

/** Handles a key. Returns whether it has a meaning. */
function press(key) {
  if (Date.now() < pairUntil) {
    pairUntil = 0;
    const view = shownViews().find((item) => item.key === key);
    if (view) {
      go([view.id]);
    }
    return Boolean(view);
  }
  switch (key) {
    case "g":
      pairUntil = Date.now() + PAIR_TIMEOUT;
      return true;
    case "/": {
      const filter = document.querySelector("[data-filter]");
      if (filter) {
        filter.focus();
        filter.select();
      } else {
        openPalette();
      }
      return true;
    }
    case "?":
      openHelp();
      return true;
    case "r":
      refresh();
      return true;
    case "t":
      toggleTheme();
      return true;
    case "j":
    case "k":
      return step(key === "j" ? 1 : -1);
    default:
      return false;
  }
}

/** Moves the focus to the next or previous row of the table. */
function step(direction) {
  const rows = [...document.querySelectorAll("main td:first-child [data-row], main td:nth-child(2) [data-row]")];
  const unique = rows.filter((item, index) => item.closest("tr") !== rows[index - 1]?.closest("tr"));
  const current = unique.findIndex((item) => item.closest("tr") === document.activeElement?.closest("tr"));
  const next = unique[current < 0 ? 0 : current + direction];
  next?.focus({ preventScroll: true });
  next?.scrollIntoView({ block: "nearest" });
  return unique.length > 0;
}

export function openHelp() {
  openDialog("Keyboard shortcuts", () => html`
    <dl class="facts">
      ${[
        ["/", "Filter the list, or search"],
        ["Ctrl K", "Go to a queue, an exchange or a view"],
        ["j  k", "Next and previous row; Enter opens it"],
        ["r", "Refresh now"],
        ["t", "Light or dark theme"],
        ["Esc", "Close the dialog, leave the field"],
        ...shownViews().map(({ key, name }) => [`g ${key}`, name]),
      ].map(([keys, text]) => html`<dt>${keys.split(/ +/).map((key) => html`<kbd>${key}</kbd> `)}</dt><dd>${text}</dd>`)}
    </dl>
    <div class="end form"><div class="end"><button onClick=${closeDialog}>Close</button></div></div>
  `);
}

export function openPalette() {
  openDialog("Go to", Palette, { bare: true, className: "palette" });
}

const NOUNS = { queues: "queue", exchanges: "exchange" };
const keyOf = ({ parts }) => parts.join("\n");

/** Returns the location and the name of an object to show. */
const placeOf = ({ kind, vhost, name }) =>
  kind === "queues"
    ? { parts: [kind, vhost, name], name }
    : { parts: [kind, vhost, exchangePath(name)], name: exchangeName(name) };

function Palette() {
  const [text, setText] = useState("");
  const [chosen, setChosen] = useState(0);
  const found = useObjects(text);
  const entries = useMemo(() => {
    const wanted = text.toLowerCase();
    const views = shownViews()
      .filter(({ name }) => name.toLowerCase().includes(wanted))
      .map(({ id, name, key }) => ({ parts: [id], name, kind: `g ${key}` }));
    const starred = favourites()
      .map((item) => ({ ...placeOf(item), kind: `favourite ${NOUNS[item.kind]} in ${item.vhost}` }))
      .filter(({ name }) => name.toLowerCase().includes(wanted))
      .slice(0, MAX_FOUND);
    const known = new Set(starred.map(keyOf));
    // What was found for an earlier text stays until the next answer.
    const others = found.filter((entry) => entry.name.toLowerCase().includes(wanted) && !known.has(keyOf(entry)));
    return [...starred, ...views.slice(0, text ? 4 : VIEWS.length), ...others];
  }, [text, found]);
  const current = Math.min(chosen, Math.max(0, entries.length - 1));

  function open({ parts }) {
    closeDialog();
    go(parts);
  }
  function onKey(event) {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const next = current + (event.key === "ArrowDown" ? 1 : -1);
      setChosen(Math.max(0, Math.min(next, entries.length - 1)));
      document.getElementById(`entry-${next}`)?.scrollIntoView({ block: "nearest" });
    } else if (event.key === "Enter" && entries[current]) {
      event.preventDefault();
      open(entries[current]);
    }
  }
  return html`
    <input
      type="text"
      role="combobox"
      aria-label="Go to"
      aria-expanded="true"
      aria-controls="entries"
      aria-activedescendant=${`entry-${current}`}
      placeholder="Queue, exchange or view"
      value=${text}
      maxlength="500"
      spellcheck=${false}
      autocomplete="off"
      onInput=${(event) => {
        setText(event.target.value);
        setChosen(0);
      }}
      onKeyDown=${onKey}
    />
    <ul id="entries" role="listbox" aria-label="Places">
      ${entries.map(
        (entry, index) => html`
          <li id=${`entry-${index}`} key=${keyOf(entry)} role="option" aria-selected=${index === current ? "true" : "false"} onClick=${() => open(entry)}>
            <span>${entry.name}</span><span>${entry.kind}</span>
          </li>
        `,
      )}
    </ul>
  `;
}

/** Returns queues and exchanges whose names contain a text. */
function useObjects(text) {
  const [found, setFound] = useState([]);
  useEffect(() => {
    if (!text) {
      setFound([]);
      return undefined;
    }
    const controller = new AbortController();
    const timer = setTimeout(async () => {
      const query = { page: 1, page_size: MAX_FOUND, name: text, columns: "name,vhost", sort: "name" };
      try {
        const [queues, exchanges] = await Promise.all([
          get(withQuery("/queues", query), { signal: controller.signal }),
          get(withQuery("/exchanges", query), { signal: controller.signal }),
        ]);
        setFound([
          ...queues.items.map((item) => ({ ...placeOf({ ...item, kind: "queues" }), kind: `queue in ${item.vhost}` })),
          ...exchanges.items.map((item) => ({ ...placeOf({ ...item, kind: "exchanges" }), kind: `exchange in ${item.vhost}` })),
        ]);
      } catch {
        // Aborted by the next key, or the API does not answer; views show that.
      }
    }, TYPING_DELAY);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [text]);
  return found;
}

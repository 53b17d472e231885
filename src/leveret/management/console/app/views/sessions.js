// The sessions of the user in all browsers.

import { call, path } from "../api.js";
import { time } from "../format.js";
import { html } from "../html.js";
import { signOut } from "../session.js";
import { confirmChange } from "../ui/dialog.js";
import { ListView } from "../ui/list.js";
import { Badge, changeColumn } from "../ui/parts.js";

const AGENTS = [
  [/Edg\//, "Edge"],
  [/OPR\//, "Opera"],
  [/Firefox\//, "Firefox"],
  [/Chrome\//, "Chrome"],
  [/Safari\//, "Safari"],
];
const SYSTEMS = [
  [/Android/, "Android"],
  [/iPhone|iPad/, "iOS"],
  [/Windows/, "Windows"],
  [/Mac OS X/, "macOS"],
  [/Linux/, "Linux"],
];

/** Returns the name of a browser and its system; other clients as they name themselves. */
function browser({ user_agent: agent }) {
  const named = (names) => names.find(([pattern]) => pattern.test(agent))?.[1];
  const [name, system] = [named(AGENTS), named(SYSTEMS)];
  return name && system ? `${name} on ${system}` : agent;
}

const COLUMNS = [
  { id: "user_agent", title: "Browser", value: browser, cell: (row) => html`<span title=${row.user_agent}>${browser(row)}</span>${row.current && html` <${Badge} tone="good">this one<//>`}` },
  { id: "address", title: "Address", width: 150, rank: 2 },
  { id: "opened_at", title: "Signed in", width: 170, rank: 3, num: true, cell: (row) => time(row.opened_at) },
  { id: "used_at", title: "Last used", width: 170, rank: 1, num: true, cell: (row) => time(row.used_at) },
  { id: "expires_at", title: "Ends", width: 170, rank: 4, num: true, cell: (row) => time(row.expires_at) },
];

const SESSIONS = path("leveret", "sessions");

function end(row) {
  confirmChange({
    title: "End session",
    text: html`Signs you out of ${browser(row)} at ${row.address}.`,
    label: "End session",
    change: () => call("DELETE", path("leveret", "sessions", row.id)),
    done: "Ended the session",
  });
}

function endOthers() {
  confirmChange({
    title: "End other sessions",
    text: "Signs you out of all other browsers.",
    label: "End other sessions",
    change: () => call("DELETE", SESSIONS),
    done: "Ended all other sessions",
  });
}

const CHANGE = changeColumn((row) =>
  row.current ? html`<button class="link" onClick=${signOut}>Sign out</button>` : html`<button class="link" onClick=${() => end(row)}>End…</button>`,
);

export const SessionsView = () => html`
  <${ListView}
    title="Your sessions"
    kind="leveret/sessions"
    noun="session"
    vhosts=${false}
    paged=${false}
    sort="used_at"
    columns=${[...COLUMNS, CHANGE]}
    keyOf=${(row) => row.id}
    empty="No session matches."
    actions=${html`<button onClick=${endOthers}>End other sessions…</button>`}
  />
`;

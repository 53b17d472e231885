// The sessions of the user in all browsers; for administrators, those of all users.

import { call, has, path } from "../api.js";
import { time } from "../format.js";
import { html } from "../html.js";
import { go, route } from "../route.js";
import { isAdministrator, signOut } from "../session.js";
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
  { id: "user_agent", title: "Browser", value: browser, cell: (row) => html`<span title=${`${browser(row)}: ${row.user_agent}`}>${browser(row)}</span>${row.current && html` <${Badge} tone="good">this one<//>`}` },
  { id: "address", title: "Address", width: 150, rank: 2 },
  { id: "opened_at", title: "Signed in", width: 180, rank: 3, num: true, cell: (row) => time(row.opened_at) },
  { id: "used_at", title: "Last used", width: 180, rank: 1, num: true, cell: (row) => time(row.used_at) },
  { id: "expires_at", title: "Ends", width: 180, rank: 4, num: true, cell: (row) => time(row.expires_at) },
];

const SESSIONS = path("leveret", "sessions");

function end(row) {
  confirmChange({
    title: "End session",
    text: html`Signs you out of ${browser(row)} at ${row.address}.`,
    label: "End session",
    change: () => call("DELETE", path("leveret", "sessions", row.id)),
    done: "Ended the session",
    forAll: true,
  });
}

function endOthers() {
  confirmChange({
    title: "End other sessions",
    text: "Signs you out of all other browsers.",
    label: "End other sessions",
    change: () => call("DELETE", SESSIONS),
    done: "Ended all other sessions",
    forAll: true,
  });
}

function endOfUser(row) {
  confirmChange({
    title: "End session",
    text: html`Signs the user <b>${row.user}</b> out of ${browser(row)} at ${row.address}.`,
    label: "End session",
    change: () => call("DELETE", path("leveret", "all-sessions", row.id)),
    done: `Ended the session of user '${row.user}'`,
  });
}

const changeBy = (change) =>
  changeColumn((row) =>
    row.current ? html`<button class="link" onClick=${signOut}>Sign out</button>` : html`<button class="link" onClick=${() => change(row)}>End…</button>`,
  );

const OWN = {
  title: "Your sessions",
  kind: "leveret/sessions",
  columns: [...COLUMNS, changeBy(end)],
};
const ALL = {
  title: "Sessions of all users",
  kind: "leveret/all-sessions",
  columns: [{ id: "user", title: "User", width: 140 }, ...COLUMNS, changeBy(endOfUser)],
};

export function SessionsView() {
  const maySeeAll = isAdministrator() && has("/leveret/all-sessions");
  const shown = maySeeAll && route.value.query.tab === "all" ? ALL : OWN;
  const actions = html`
    ${shown === ALL && html`<button onClick=${() => go(["sessions"])}>Your sessions</button>`}
    ${shown === OWN && maySeeAll && html`<button onClick=${() => go(["sessions"], { tab: "all" })}>Sessions of all users</button>`}
    ${shown === OWN && html`<button onClick=${endOthers}>End other sessions…</button>`}
  `;
  return html`
    <${ListView} key=${shown.kind} ...${shown} noun="session" vhosts=${false} paged=${false} sort="used_at" keyOf=${(row) => row.id} empty="No session matches." actions=${actions} />
  `;
}

// Definitions: export, and import of a file after a look at what it would change.

import { call, get, path } from "../api.js";
import { save } from "../csv.js";
import { count, plain, plural } from "../format.js";
import { html, useState } from "../html.js";
import { route } from "../route.js";
import { confirmChange } from "../ui/dialog.js";
import { Note, Panel, Title, toast } from "../ui/parts.js";
import { VhostChoice } from "../ui/list.js";

const MAX_FILE = 20 << 20;
const MAX_SHOWN = 200;

// Keys that identify an object of each section.
const SECTIONS = {
  users: ["name"],
  vhosts: ["name"],
  permissions: ["vhost", "user"],
  topic_permissions: ["vhost", "user", "exchange"],
  parameters: ["vhost", "component", "name"],
  global_parameters: ["name"],
  policies: ["vhost", "name"],
  queues: ["vhost", "name"],
  exchanges: ["vhost", "name"],
  bindings: ["vhost", "source", "destination_type", "destination", "routing_key", "arguments"],
};
// Keys whose values differ in every export.
const VOLATILE = new Set(["password_hash", "hashing_algorithm"]);

function canonical(value) {
  if (Array.isArray(value)) {
    return value.map(canonical);
  }
  if (value !== null && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).filter(([key]) => !VOLATILE.has(key)).sort().map(([key, inner]) => [key, canonical(inner)]));
  }
  return value;
}

/** Returns what an import of `wanted` changes in `current`: `{section, identity, kind, before, after}` each. */
function difference(current, wanted) {
  const found = [];
  for (const [section, keys] of Object.entries(SECTIONS)) {
    const identity = (item) => keys.map((key) => plain(canonical(item[key]))).join(" · ");
    const known = new Map((current[section] ?? []).map((item) => [identity(item), item]));
    for (const item of wanted[section] ?? []) {
      const name = identity(item);
      const before = known.get(name);
      const [old, now] = [JSON.stringify(canonical(before ?? null)), JSON.stringify(canonical(item))];
      if (!before) {
        found.push({ section, name, kind: "added", after: now });
      } else if (old !== now) {
        found.push({ section, name, kind: "differs", before: old, after: now });
      }
    }
  }
  return found;
}

export function DefinitionsView() {
  const vhost = route.value.query.vhost ?? "";
  const target = vhost ? path("definitions", vhost) : "/definitions";
  const [plan, setPlan] = useState(null);

  async function download() {
    try {
      const found = await get(target);
      save(`definitions${vhost ? `-${encodeURIComponent(vhost)}` : ""}.json`, JSON.stringify(found, null, 2), "application/json");
    } catch (error) {
      toast(error.message, "bad");
    }
  }

  async function choose(event) {
    const [file] = event.target.files;
    event.target.value = "";
    setPlan(null);
    try {
      if (!file || file.size > MAX_FILE) {
        throw new Error(`The file has ${count(file?.size)} bytes; expected at most ${count(MAX_FILE)}`);
      }
      const wanted = JSON.parse(await file.text());
      setPlan({ file: file.name, wanted, changes: difference(await get(target), wanted) });
    } catch (error) {
      toast(error.message, "bad");
    }
  }

  const apply = () =>
    confirmChange({
      title: "Import definitions",
      text: html`Imports <b>${plan.file}</b>: ${plural(plan.changes.length, "difference")}. Objects that are not in the file stay.`,
      label: "Import definitions",
      change: async () => {
        await call("POST", target, plan.wanted);
        setPlan(null);
      },
      done: `Imported '${plan.file}'`,
    });

  return html`
    <${Title} title="Definitions" />
    <div class="toolbar"><${VhostChoice} value=${vhost} /></div>
    <div class="grid">
      <${Panel} title="Export">
        <div class="form">
          <p>Users, vhosts, permissions, policies, queues, exchanges and bindings, without messages, in RabbitMQ's format.</p>
          <div><button class="primary" onClick=${download}>Download definitions</button></div>
        </div>
      <//>
      <${Panel} title="Import">
        <div class="form">
          <p>Shows what a file would change before anything changes. An import adds objects and deletes none.</p>
          <label class="field"><span>File</span><input type="file" accept="application/json,.json" onChange=${choose} /></label>
        </div>
      <//>
    </div>
    ${plan &&
    html`
      <${Panel} title=${`Differences of ${plan.file}`} actions=${plan.changes.length > 0 && html`<button class="primary" onClick=${apply}>Import…</button>`}>
        ${plan.changes.length === 0
          ? html`<${Note}>The broker already has everything in this file.<//>`
          : html`<pre class="payload" tabindex="0" aria-label="Differences">${plan.changes.slice(0, MAX_SHOWN).map(
              (change) => html`
                <div>${change.kind === "added" ? "+" : "~"} ${change.section}  ${change.name}</div>
                ${change.before && html`<div class="removed">    - ${change.before}</div>`}
                <div class="added">    + ${change.after}</div>
              `,
            )}</pre>`}
        ${plan.changes.length > MAX_SHOWN && html`<p class="muted">and ${count(plan.changes.length - MAX_SHOWN)} more</p>`}
      <//>
    `}
  `;
}


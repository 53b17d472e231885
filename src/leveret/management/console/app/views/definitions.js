// Definitions: export, and import of a file after a look at what it would change.

import { call, get, path, withQuery } from "../api.js";
import { save } from "../csv.js";
import { count, plain, plural } from "../format.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { route } from "../route.js";
import { isReadOnly } from "../session.js";
import { confirmChange } from "../ui/dialog.js";
import { Failure, Note, Panel, Title, toast } from "../ui/parts.js";
import { VhostChoice } from "../ui/list.js";

const MAX_FILE = 20 << 20;
const MAX_SHOWN = 200;

/** Whether an import changes nothing. */
const isEqual = ({ added, changed, skipped, refused }) =>
  added.length + changed.length + refused.length === 0 && !skipped.some(({ after }) => after);

const noted = ({ label, reason }) => (reason ? `${label}: ${reason}` : label);

/** Returns the lines about each object: `{sign, text, before, after}`. */
const linesOf = ({ added, changed, skipped, refused }) => [
  ...refused.map((item) => ({ sign: "!", text: `${item.label}: ${item.reason}` })),
  ...added.map((item) => ({ sign: "+", text: noted(item), after: item.after })),
  ...changed.map((item) => ({ sign: "~", text: noted(item), before: item.before, after: item.after })),
  ...skipped.map((item) => ({ sign: "=", text: `${item.label}: ${item.reason}` })),
];

export function DefinitionsView() {
  const vhost = route.value.query.vhost ?? "";
  const target = vhost ? path("definitions", vhost) : "/definitions";
  const [plan, setPlan] = useState(null);
  const [error, setError] = useState(null); // why the chosen file is no plan
  const controller = useRef(null);
  useEffect(() => {
    setPlan(null); // a plan is for its target
    setError(null);
    return () => controller.current?.abort();
  }, [target]);

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
    setError(null);
    controller.current?.abort();
    const { signal } = (controller.current = new AbortController());
    try {
      if (!file || file.size > MAX_FILE) {
        throw new Error(`The file has ${plural(file?.size, "byte")}; expected at most ${count(MAX_FILE)}`);
      }
      const wanted = JSON.parse(await file.text());
      const report = await call("POST", withQuery(target, { dry_run: "true" }), wanted, { signal });
      setPlan({ file: file.name, wanted, report });
    } catch (failure) {
      if (!signal.aborted) {
        setError(failure);
      }
    }
  }

  const apply = () =>
    confirmChange({
      title: "Import definitions",
      text: html`Imports <b>${plan.file}</b>: ${plural(changesOf(plan.report), "difference")}. Objects that are not in the file stay.`,
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
          <${Failure} error=${error} />
        </div>
      <//>
    </div>
    ${plan && html`<${Plan} ...${plan} apply=${apply} />`}
  `;
}

const changesOf = ({ added, changed }) => added.length + changed.length;

/** The differences between a file and the broker. */
function Plan({ file, report, apply }) {
  const lines = linesOf(report);
  return html`
    <${Panel} title=${`Differences of ${file}`} actions=${changesOf(report) > 0 && html`<button class="primary" disabled=${isReadOnly()} onClick=${apply}>Import…</button>`}>
      ${isEqual(report) && html`<${Note}>The broker already has everything in this file.<//>`}
      ${report.refused.length > 0 && html`<${Note} tone="warn">${plural(report.refused.length, "object")} of the file cannot be imported: see the reasons.<//>`}
      ${lines.length > 0 &&
      html`<pre class="payload" tabindex="0" aria-label="Differences">${lines.slice(0, MAX_SHOWN).map(
        ({ sign, text, before, after }) => html`
          <div>${sign} ${text}</div>
          ${before && html`<div class="removed">    - ${plain(before)}</div>`}
          ${after && html`<div class="added">    + ${plain(after)}</div>`}
        `,
      )}</pre>`}
      ${lines.length > MAX_SHOWN && html`<p class="muted">and ${count(lines.length - MAX_SHOWN)} more</p>`}
    <//>
  `;
}

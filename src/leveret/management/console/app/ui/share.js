// The state of a queue for others: a link, or a file for those who cannot sign in.

import { queuePath } from "../actions.js";
import { get, path, withQuery } from "../api.js";
import { save } from "../csv.js";
import { diagnose } from "../diagnosis.js";
import { html, useRef, useState } from "../html.js";
import { historyParameters } from "./chart.js";
import { openDialog } from "./dialog.js";
import { Note, toast } from "./parts.js";

// Seconds of samples in a snapshot, and between them.
const SAMPLES = [3600, 60];

export const share = (queue) => openDialog("Share the state of the queue", () => html`<${Share} queue=${queue} />`);

/** Returns what the user may read of a queue, without messages. */
async function snapshot({ vhost, name }) {
  const optional = (target) => get(target).catch(() => null);
  const [broker, queue, bindings] = await Promise.all([
    get(withQuery("/overview", { columns: "product_name,product_version,rabbitmq_version,cluster_name,node" })),
    get(withQuery(queuePath({ vhost, name }), historyParameters(SAMPLES))),
    optional(`${queuePath({ vhost, name })}/bindings`),
  ]);
  const [policy, operatorPolicy] = await Promise.all([
    queue.policy ? optional(path("policies", vhost, queue.policy)) : null,
    queue.operator_policy ? optional(path("operator-policies", vhost, queue.operator_policy)) : null,
  ]);
  return { kind: "leveret queue snapshot", version: 1, taken_at: new Date().toISOString(), link: location.href, broker, findings: diagnose(queue), queue, bindings, policy, operator_policy: operatorPolicy };
}

function Share({ queue }) {
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const field = useRef(null);

  async function download() {
    setBusy(true);
    setError("");
    try {
      const content = await snapshot(queue);
      save(`queue-${queue.name.replace(/[^\w.-]+/g, "_").slice(0, 80)}.json`, JSON.stringify(content, null, 2), "application/json");
    } catch (failure) {
      setError(failure.message);
    }
    setBusy(false);
  }
  async function copy() {
    try {
      await navigator.clipboard.writeText(location.href);
      toast("Copied");
    } catch {
      field.current.select(); // without TLS, browsers let only the user copy
    }
  }
  return html`
    <div class="form">
      <label class="field">
        <span>Link to this view, with its tab, range and search</span>
        <input ref=${field} value=${location.href} readonly />
        <span class="small muted">Whoever opens it needs a user of this broker.</span>
      </label>
      <div class="row">
        <button type="button" onClick=${copy}>Copy link</button>
        <button type="button" disabled=${busy} onClick=${download}>Download snapshot</button>
      </div>
      ${error && html`<${Note} tone="bad">${error}<//>`}
      <p class="small muted">
        The snapshot is a JSON file: the queue with its statistics of the last hour, consumers, bindings and policies. It has no messages, but
        names of users and addresses of clients.
      </p>
    </div>
  `;
}

// Alerts that are raised, and their rules.

import { canNotify, describeAlert, notifies, setNotifies } from "../alerts.js";
import { call, has, path, send } from "../api.js";
import { save } from "../csv.js";
import { useResource } from "../data.js";
import { count, duration, plural, time } from "../format.js";
import { html } from "../html.js";
import { link, route, setQuery } from "../route.js";
import { isAdministrator, isPolicymaker, mayChangeIn, mayMakeRules, ownVhosts } from "../session.js";
import { ChangeForm, confirmChange, openDialog } from "../ui/dialog.js";
import { Choice, Text, useFields } from "../ui/form.js";
import { VhostChoice } from "../ui/list.js";
import { Badge, Failure, Panel, QueueLink, Title, changeColumn, toast } from "../ui/parts.js";
import { SmallTable } from "../ui/table.js";

const KINDS = [
  ["depth", "Messages of a queue"],
  ["growth", "Growth of a queue"],
  ["no_consumers", "Messages without a consumer"],
  ["no_acks", "Unacked messages without an acknowledgement"],
  ["ready_age", "Age of the oldest ready message"],
  ["unacked_age", "Age of the oldest unacked message"],
  ["memory", "Memory alarm"],
  ["disk", "Disk alarm"],
];
const TITLES = Object.fromEntries(KINDS);
const OF_NODE = new Set(["memory", "disk"]);
// What the threshold counts.
const UNITS = { depth: "message", growth: "message", no_consumers: "message", no_acks: "second", ready_age: "second", unacked_age: "second" };
const unitOf = (kind, value) => `${plural(value, UNITS[kind])}${kind === "growth" ? " per second" : ""}`;

const ALERT_COLUMNS = [
  { id: "rule", title: "Rule", min: 140, cell: (row) => html`<a href=${link(["alerts"], { rule: row.rule })} title=${row.rule} data-row>${row.rule}</a>` },
  { id: "queue", title: "Queue", cell: (row) => (row.queue ? html`<${QueueLink} vhost=${row.vhost} name=${row.queue} />` : html`<${Badge}>node<//>`) },
  { id: "vhost", title: "Vhost", width: 100, rank: 4 },
  { id: "value", title: "State", value: describeAlert, cell: (row) => html`<span title=${describeAlert(row)}>${describeAlert(row)}</span>` },
  { id: "since", title: "Since", width: 180, rank: 2, cell: (row) => time(row.since) },
];

const isSilenced = (rule) => rule.silenced_until > Date.now();
const threshold = (row) => (row.kind in UNITS ? unitOf(row.kind, row.threshold) : "");

const RULE_COLUMNS = [
  { id: "name", title: "Rule", min: 140, cell: (row) => html`<a href=${link(["alerts"], { rule: row.name })} title=${row.name} data-row>${row.name}</a>` },
  { id: "kind", title: "Condition", min: 150, value: (row) => TITLES[row.kind] },
  { id: "pattern", title: "Queues", rank: 2, value: (row) => (OF_NODE.has(row.kind) ? "" : row.pattern || "all"), cell: (row) => !OF_NODE.has(row.kind) && html`<code title=${row.pattern}>${row.pattern || "all"}</code>` },
  { id: "vhost", title: "Vhost", width: 100, rank: 4, value: (row) => row.vhost ?? "" },
  { id: "threshold", title: "More than", width: 190, rank: 1, value: (row) => row.threshold, cell: threshold },
  { id: "seconds", title: "For", width: 90, rank: 3, cell: (row) => (row.seconds ? duration(1000 * row.seconds) : "") },
  { id: "silenced_until", title: "Silenced until", width: 180, rank: 2, value: (row) => (isSilenced(row) ? time(row.silenced_until) : "") },
];
const CHANGE = changeColumn(
  (row) => mayChangeIn(row.vhost) && html`
    <button class="link" onClick=${() => editRule(row)}>Change…</button>${" "}
    <button class="link" onClick=${() => silenceRule(row)}>Silence…</button>${" "}
    <button class="link" onClick=${() => deleteRule(row)}>Delete…</button>
  `,
  240,
);

const PROMETHEUS = "/leveret/prometheus-rules";
const WEBHOOKS = "/leveret/alert-webhooks";
const ADDRESSES = "/leveret/alert-addresses";
const DELIVERIES = "/leveret/alert-deliveries";

const DELIVERY_COLUMNS = [
  { id: "receiver", title: "Receiver", cell: (row) => html`<span title=${row.receiver} data-row>${row.receiver}</span>` },
  { id: "kind", title: "By", width: 90, rank: 3 },
  { id: "delivered", title: "Delivered", width: 90, num: true, rank: 2, cell: (row) => count(row.delivered) },
  { id: "failed", title: "Failed", width: 80, num: true, cell: (row) => count(row.failed) },
  { id: "dropped", title: "Dropped", width: 80, num: true, rank: 4, cell: (row) => count(row.dropped) },
  { id: "pending", title: "Waiting", width: 80, num: true, rank: 4, cell: (row) => count(row.pending) },
  { id: "error", title: "Last error", value: (row) => row.error, cell: (row) => row.error_at > 0 && html`<span title=${row.error}>${time(row.error_at)}: ${row.error}</span>` },
];

const rulePath = (name) => path("leveret", "alert-rules", name);

function deleteRule({ name }) {
  confirmChange({
    title: "Delete rule",
    text: html`Deletes the rule <b>${name}</b>, and clears its alerts.`,
    label: "Delete rule",
    change: () => call("DELETE", rulePath(name)),
    done: `Deleted rule '${name}'`,
  });
}

const SILENCES = [
  ["3600", "1 hour"],
  ["28800", "8 hours"],
  ["86400", "1 day"],
  ["604800", "7 days"],
  ["0", "not at all"],
];

const silenceRule = (rule) => openDialog(`Silence rule '${rule.name}'`, () => html`<${SilenceRule} rule=${rule} />`);

function SilenceRule({ rule: { name, ...rule } }) {
  const state = useFields({ seconds: SILENCES[0][0] });
  const [{ seconds }] = state;
  async function submit() {
    const until = Number(seconds) ? Date.now() + 1000 * Number(seconds) : 0;
    await call("PUT", rulePath(name), { ...rule, silenced_until: until });
    return until ? `Silenced rule '${name}' until ${time(until)}` : `Rule '${name}' is not silenced`;
  }
  return html`
    <${ChangeForm} label="Silence rule" submit=${submit}>
      <p>Clears the alerts of the rule, and raises none for that time.</p>
      <${Choice} label="For" name="seconds" state=${state} options=${SILENCES} />
    <//>
  `;
}

async function download() {
  try {
    const response = await send("GET", PROMETHEUS);
    save("leveret-rules.yml", await response.text(), "application/yaml");
  } catch (error) {
    toast(error.message, "bad");
  }
}

const editRule = (rule) => openDialog(rule ? `Change rule '${rule.name}'` : "Add a rule", () => html`<${EditRule} rule=${rule} />`);

function EditRule({ rule }) {
  const state = useFields({
    name: rule?.name ?? "",
    kind: rule?.kind ?? "depth",
    vhost: rule ? (rule.vhost ?? "") : isAdministrator() ? "" : ownVhosts()[0],
    pattern: rule?.pattern ?? "",
    threshold: String(rule?.threshold ?? 1000),
    seconds: String(rule?.seconds ?? 0),
    webhook: rule?.webhook ?? "",
    mail: (rule?.mail ?? []).join(", "),
  });
  const { value: addresses = [] } = useResource(has(ADDRESSES) ? ADDRESSES : null, { slow: true });
  const { value: webhooks = [] } = useResource(has(WEBHOOKS) ? WEBHOOKS : null, { slow: true });
  const [values, set] = state;
  const ofQueues = !OF_NODE.has(values.kind);
  async function submit() {
    const { name, kind, vhost, pattern } = values;
    const body = { kind, vhost: (ofQueues || !isAdministrator()) && vhost ? vhost : null, pattern: ofQueues ? pattern : "", threshold: ofQueues ? Number(values.threshold) : 0, seconds: Number(values.seconds), silenced_until: rule?.silenced_until ?? 0, webhook: values.webhook, mail: values.mail.split(/[\s,]+/).filter(Boolean) };
    await call("PUT", rulePath(name), body);
    return `Set rule '${name}'`;
  }
  return html`
    <${ChangeForm} label="Set rule" submit=${submit}>
      ${!rule && html`<${Text} label="Name" name="name" state=${state} required maxlength="200" />`}
      <${Choice} label="Condition" name="kind" state=${state} options=${KINDS} />
      ${(ofQueues || !isAdministrator()) &&
      html`
        <div class="pair">
          <label class="field"><span>Vhost</span><${VhostChoice} may=${mayChangeIn} required=${!isAdministrator()} value=${values.vhost} onChange=${(name) => set("vhost", name)} /></label>
          ${ofQueues && html`<${Text} label="Pattern of names" name="pattern" state=${state} maxlength="1000" hint="An RE2 expression. Empty: all queues" />`}
        </div>
      `}
      <div class="pair">
        ${ofQueues && html`<${Text} label=${`More than (${unitOf(values.kind, 0).slice(2)})`} name="threshold" type="number" min="0" step="any" required state=${state} />`}
        <${Text} label="For at least (seconds)" name="seconds" type="number" min="0" max="86400" required state=${state} />
      </div>
      ${webhooks.length > 0 && html`<${Choice} label="Webhook" name="webhook" state=${state} options=${[["", "none"], ...webhooks]} />`}
      ${addresses.length > 0 && html`<${Text} label="Mail to" name="mail" state=${state} hint=${`Addresses, separated by commas. Allowed: ${addresses.join(", ")}`} />`}
    <//>
  `;
}

function toggleNotifications() {
  setNotifies(!notifies.value).catch((error) => toast(error.message, "bad"));
}

export function AlertsView() {
  const { rule: wanted } = route.value.query;
  const { value: alerts, error } = useResource("/leveret/alerts");
  const { value: rules } = useResource("/leveret/alert-rules");
  const { value: deliveries = [] } = useResource(isPolicymaker() && has(DELIVERIES) ? DELIVERIES : null);
  const ofRule = (name) => !wanted || name === wanted;
  return html`
    <${Title}
      title="Alerts"
      badges=${wanted && html`<button class="quiet" onClick=${() => setQuery({ rule: "" })}>Rule ${wanted} ×</button>`}
      actions=${html`
        ${canNotify() && html`<button aria-pressed=${notifies.value} onClick=${toggleNotifications}>${notifies.value ? "Notifications are on" : "Notify me"}</button>`}
        <button onClick=${download}>Prometheus rules</button>
        ${mayMakeRules() && html`<button class="primary" onClick=${() => editRule(null)}>Add rule</button>`}
      `}
    />
    <${Failure} error=${error} />
    <${Panel} title="Raised" flush>
      <${SmallTable} label="Raised alerts" rows=${(alerts ?? []).filter(({ rule }) => ofRule(rule))} columns=${ALERT_COLUMNS} keyOf=${(row) => [row.rule, row.vhost, row.queue].join("\n")} initial="since" initialDescending loading=${!alerts} empty="No alert is raised." />
    <//>
    <${Panel} title="Rules" flush>
      <${SmallTable} label="Rules" rows=${(rules ?? []).filter(({ name }) => ofRule(name))} columns=${mayMakeRules() ? [...RULE_COLUMNS, CHANGE] : RULE_COLUMNS} keyOf=${(row) => row.name} initial="name" loading=${!rules} empty="No rules." />
    <//>
    ${deliveries.length > 0 &&
    html`
      <${Panel} title="Deliveries" flush>
        <${SmallTable} label="Deliveries" rows=${deliveries} columns=${DELIVERY_COLUMNS} keyOf=${(row) => `${row.kind} ${row.receiver}`} initial="receiver" empty="" />
      <//>
    `}
  `;
}

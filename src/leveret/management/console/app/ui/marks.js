// Events in charts: deletions and changes of a queue, changes of policies, from the audit log, and marks that users set.

import { call, has, path, withQuery } from "../api.js";
import { useResource } from "../data.js";
import { time } from "../format.js";
import { html, useMemo } from "../html.js";
import { isAdministrator, isPolicymaker, isReadOnly } from "../session.js";
import { ChangeForm, openDialog } from "./dialog.js";
import { Text, useFields } from "./form.js";
import { Facts, Panel } from "./parts.js";

const AUDIT = "/leveret/audit";
const MARKS = "/leveret/marks";
const HISTORY = "/leveret/history";
// Milliseconds between a deletion in the audit log and in the history up to which they are the same.
const SAME_DELETION = 5000;
// Records of the audit log to ask for.
const MAX_RECORDS = 100;
const MAX_LISTED = 10;

/**
 * Returns events as `[{time, text}]`, the oldest first; times are in seconds.
 *
 * Args:
 *   queue: The queue whose changes count; null for none.
 *   records: Records of the audit log.
 *   marks: Marks that users have set.
 *   deletions: Times in milliseconds at which queues with the name were deleted.
 */
export function eventsOf(queue, records, marks, deletions) {
  const concerns = ({ kind, vhost, name }) =>
    queue?.vhost === vhost && (kind === "policy" || kind === "operator_policy" || (kind === "queue" && name === queue.name));
  const changes = records.filter(concerns);
  const isRecorded = (deletion) =>
    changes.some(({ kind, action, time }) => kind === "queue" && action.endsWith(".delete") && Math.abs(time - deletion) < SAME_DELETION);
  return [
    ...marks.map((mark) => ({ time: mark.time / 1000, text: mark.name })),
    ...deletions.filter((deletion) => !isRecorded(deletion)).map((deletion) => ({ time: deletion / 1000, text: `deleted ${queue.name}` })),
    ...changes.map((record) => ({ time: record.time / 1000, text: `${record.action} ${record.name} by ${record.user}` })),
  ].sort((one, other) => one.time - other.time);
}

/** Returns the events of a queue, or of the broker if it is null. The audit log is for administrators. */
export function useEvents(queue) {
  const isAudited = queue !== null && has(AUDIT) && isAdministrator();
  const search = (conditions) => (isAudited ? withQuery(AUDIT, { vhost: queue.vhost, page_size: MAX_RECORDS, ...conditions }) : null);
  const { value: own } = useResource(search({ kind: "queue", object: queue?.name }), { slow: true });
  const { value: policies } = useResource(search({ action: "policies" }), { slow: true });
  const { value: kept } = useResource(
    queue && has(HISTORY) ? withQuery(HISTORY, { vhost: queue.vhost, queue: queue.name, age: 0 }) : null,
    { slow: true },
  );
  const { value: marks } = useResource(has(MARKS) ? MARKS : null, { slow: true });
  return useMemo(
    () => eventsOf(queue, [...(own?.items ?? []), ...(policies?.items ?? [])], marks ?? [], kept?.deleted ?? []),
    [queue?.vhost, queue?.name, own, policies, marks, kept],
  );
}

function AddMark() {
  const state = useFields({ name: "" });
  const [{ name }] = state;
  async function submit() {
    await call("PUT", path("leveret", "marks", name), {});
    return `Set mark '${name}'`;
  }
  return html`
    <${ChangeForm} label="Set mark" submit=${submit}>
      <${Text} label="Name" name="name" state=${state} required maxlength="200" placeholder="deployed 1.4.2" hint="Charts show it at the current time" />
    <//>
  `;
}

export const AddMarkButton = () =>
  isPolicymaker() && !isReadOnly() && has("/leveret/marks/{name}", "PUT") && html`<button onClick=${() => openDialog("Set a mark", () => html`<${AddMark} />`)}>Mark…</button>`;

/** The latest events that charts mark. */
export const EventsPanel = ({ events }) =>
  events.length > 0 &&
  html`
    <${Panel} title="Events">
      <${Facts} items=${events.slice(-MAX_LISTED).reverse().map((event) => [time(1000 * event.time), event.text])} />
    <//>
  `;

// The message browser of a queue: messages in their places, a search, and changes of selected messages.

import { call, get, withQuery } from "../api.js";
import { useResource } from "../data.js";
import { bytes, count, duration, plural, time } from "../format.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { refresh } from "../live.js";
import { route, setQuery } from "../route.js";
import { mayReadPayloads } from "../session.js";
import { ChangeForm, openDialog } from "./dialog.js";
import { Area, Check, Choice, parseObject, Text, useFields } from "./form.js";
import { exportMessages, ImportMessages } from "./files.js";
import { GetMessages, Message } from "./messages.js";
import { Failure, Note, Panel } from "./parts.js";
import { fromBase64, PART } from "./payload.js";
import { conditionsIn, conditionText, placePath, Relocate, relocate, summary } from "./relocate.js";
import { conditions, hasCondition, SearchFields, searchOf, searchQuery } from "./search.js";
import { useRole } from "./roles.js";

const PAGE = 50;
// The limits of one request of a search: short enough for a timely progress, and for a search that is cancelled to end.
const LIMITS = { examine: 100_000, examine_bytes: 256 << 20, seconds: 1 };
const NONE_COUNTED = { messages: 0, examined: 0, skipped: 0 };
const NONE = { messages: [], examined: 0, skipped: 0, cursor: "" };

const STATES = [
  ["ready", "Ready"],
  ["unacked", "Unacked"],
  ["delayed", "Delayed"],
];

const SINCE_STREAM = "A time (UTC), or an interval ago: from the chunk of the stream that contains it";
const SINCE_QUEUE = "A time (UTC), or an interval ago: only messages whose property timestamp is not earlier";

/** Returns the function that reads a range of a message's payload. */
export const reader = (queue, { id }, queueId) => async (first, length) =>
  fromBase64((await get(withQuery(placePath(queue, "messages", id, "payload"), { first, length, queue_id: queueId }))).payload);

/** Returns the conditions of a request. */
const selection = (wanted) => ({ ...conditions(wanted), since: wanted.since });

const isSearchFor = (wanted) => Boolean((wanted && hasCondition(wanted)) || wanted?.selector || wanted?.since || wanted?.group.length);

/** Returns about how many messages a search has to look at; `waiting` has the number of delayed ones. */
function sizeOf(queue, { state, offset }, waiting) {
  const size = { ready: queue.messages_ready, unacked: queue.messages_unacknowledged, delayed: waiting?.delayed }[state];
  return Math.max((size ?? 0) - Number(offset), 0);
}

/** What is said of a message in the list, beside its size. */
function noteOf({ unacked_age: age, ready_at: readyAt }) {
  return readyAt ? `, ready at ${time(readyAt)}` : age > 0 ? `, unacked for ${duration(1000 * age)}` : "";
}

/** How far a search is, and a button that ends it. */
const Progress = ({ examined, found, size, cancel }) => html`
  <div class="row">
    <progress aria-label="Progress of the search" value=${examined} max=${Math.max(size, examined, 1)}></progress>
    <span>Looked at ${count(examined)} of ${plural(Math.max(size, examined), "message")}, found ${count(found)}.</span>
    <button onClick=${cancel}>Cancel search</button>
  </div>
`;

export function MessageBrowser({ queue }) {
  const { query } = route.value;
  const isStream = queue.type === "stream";
  const state = useFields({
    state: query.state ?? "ready",
    offset: query.offset ?? "0",
    since: query.since ?? "",
    ...searchOf(query),
  });
  // Conditions of the location, such as those of a group of dead letters, beside those of the form.
  const group = conditionsIn(query.where);
  const values = { ...state[0], group };
  const [found, setFound] = useState(null);
  const [read, setRead] = useState(null); // the values that the messages are for
  const [chosen, setChosen] = useState(0);
  const [selected, setSelected] = useState(new Set());
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const controller = useRef(null);

  /** Ends the work in progress, and calls a function that does other work. */
  async function run(work) {
    controller.current?.abort();
    const { signal } = (controller.current = new AbortController());
    setBusy(true);
    setError(null);
    try {
      await work(signal);
    } catch (failure) {
      if (failure.name === "AbortError") {
        return;
      }
      setError(failure);
    }
    setBusy(false);
  }
  function cancel() {
    controller.current?.abort();
    setBusy(false);
  }

  /** Reads a page of messages behind earlier ones. A search continues until the page is full, or at the end. */
  const load = (wanted, earlier = NONE) =>
    run(async (signal) => {
      const until = earlier.messages.length + PAGE;
      let page = earlier;
      if (!earlier.cursor) {
        if (isSearchFor(wanted)) {
          setFound(null);
        }
        setRead(wanted);
        setChosen(0);
        setSelected(new Set());
      }
      do {
        const body = {
          state: wanted.state,
          offset: page.cursor ? 0 : Number(wanted.offset),
          count: until - page.messages.length,
          truncate: PART,
          encoded: true,
          ...selection(wanted),
          cursor: page.cursor,
          ...LIMITS,
        };
        const answer = await call("POST", placePath(queue, "messages", "search"), body, { signal });
        page = {
          ...answer,
          messages: [...page.messages, ...answer.messages],
          examined: page.examined + answer.examined,
          skipped: page.skipped + answer.skipped,
        };
        setFound(page);
      } while (page.cursor && page.messages.length < until && isSearchFor(wanted));
    });

  /** Counts the messages that match behind those that are shown. */
  const countRest = () =>
    run(async (signal) => {
      let rest = { messages: 0, examined: 0, skipped: 0, cursor: found.cursor };
      do {
        const answer = await call("POST", placePath(queue, "messages", "count"), { state: read.state, ...selection(read), cursor: rest.cursor, ...LIMITS }, { signal });
        rest = {
          messages: rest.messages + answer.messages,
          examined: rest.examined + answer.examined,
          skipped: rest.skipped + answer.skipped,
          cursor: answer.cursor,
        };
        setFound({ ...found, rest });
      } while (rest.cursor);
    });
  useEffect(() => {
    load(values);
    return () => controller.current?.abort();
  }, [query.where]);

  function submit(event) {
    event.preventDefault();
    const { state: kind, offset, since } = values;
    setQuery({ state: kind === "ready" ? "" : kind, offset: offset === "0" ? "" : offset, since, ...searchQuery(values) });
    load(values);
  }
  const again = () => {
    refresh();
    load(read ?? values);
  };

  const messages = found?.messages ?? [];
  const rest = found?.rest ?? NONE_COUNTED;
  const examined = (found?.examined ?? 0) + rest.examined;
  const skipped = (found?.skipped ?? 0) + rest.skipped;
  const matching = messages.length + rest.messages;
  const isSearch = isSearchFor(read);
  const may = useRole(queue);
  const mayOperate = may("operator", "read");
  const mayExport = may("viewer", "read", { changes: false }) && mayReadPayloads();
  const canChange = mayOperate && read?.state === "ready" && (selected.size > 0 || (isSearch && messages.length > 0));
  const what = selected.size > 0 ? plural(selected.size, "selected message") : "all messages that match";
  const body = selected.size > 0 ? { ids: [...selected], queue_id: found?.queue_id } : selection(read ?? values);
  const change = { queue, what, body, done: again };
  const exported = selected.size > 0 ? body : { ...body, state: read?.state, offset: Number(read?.offset) };
  const message = messages[chosen];
  const { value: waiting } = useResource(read?.state === "delayed" ? placePath(queue, "ready") : null);

  return html`
    <${Panel}
      title="Messages in the queue"
      actions=${html`<span class="muted small">Messages stay where they are, and do not count as redelivered.</span><button onClick=${() => openDialog("Take messages", () => html`<${GetMessages} queue=${queue} done=${again} />`)} disabled=${isStream || !mayOperate || !mayReadPayloads()}>Take messages…</button>`}
    >
      <form class="form" onSubmit=${submit} role="search">
        <div class="pair compact">
          <${Choice} label="State" name="state" state=${state} options=${isStream ? STATES.slice(0, 1) : STATES} />
          <${Text} label=${isStream ? "From offset" : "Skip"} name="offset" type="number" min="0" required state=${state} />
          <${Text} label="Since" name="since" maxlength="60" placeholder="1h, 7D" title=${isStream ? SINCE_STREAM : SINCE_QUEUE} state=${state} />
          <${SearchFields} state=${state} />
          <button class="primary" disabled=${busy}>${hasCondition(values) || values.selector ? "Search" : "Browse"}</button>
        </div>
      </form>
    <//>
    ${group.length > 0 &&
    html`
      <div class="row">
        <span>Only messages with ${group.map(conditionText).join(", ")}</span>
        <button class="quiet" onClick=${() => setQuery({ where: "" })}>Show all</button>
      </div>
    `}
    <${Failure} error=${error} />
    ${busy && isSearch && html`<${Progress} examined=${examined} found=${matching} size=${sizeOf(queue, read, waiting)} cancel=${cancel} />`}
    ${found &&
    html`
      <div class="toolbar" role="group" aria-label="Selected messages">
        <span class="muted" role="status">
          ${plural(matching, "message")}${isSearch || found.cursor ? ` of ${plural(examined, "message")} that were looked at` : ""}${rest.messages > 0 ? `, the first ${count(messages.length)} shown` : ""}${skipped > 0 ? `; skipped ${count(skipped)}, whose JSON is too large` : ""}
        </span>
        <button disabled=${!canChange || isStream} onClick=${() => openDialog("Move messages", () => html`<${Relocate} ...${change} verb="Move" />`)}>Move messages…</button>
        <button disabled=${!canChange} onClick=${() => openDialog("Copy messages", () => html`<${Relocate} ...${change} verb="Copy" />`)}>Copy messages…</button>
        <button disabled=${!mayExport || messages.length === 0} onClick=${() => exportMessages(queue, exported, selected.size > 0 ? what : isSearch ? "all messages that match" : `all ${read.state} messages`)}>Export</button>
        <button disabled=${!may("operator", "write")} onClick=${() => openDialog("Import messages", () => html`<${ImportMessages} queue=${queue} done=${again} />`)}>Import…</button>
        <button class="danger" disabled=${!canChange || isStream} onClick=${() => openDialog("Delete messages", () => html`<${Delete} ...${change} />`)}>Delete messages…</button>
        ${canChange && html`<span class="small muted">${what}</span>`}
      </div>
      ${messages.length === 0 && html`<${Note}>No message ${isSearch ? "matches" : "is here"}${found.cursor ? " so far" : ""}.<//>`}
      ${messages.length > 0 &&
      html`
        <div class="messages">
          <${MessageList} ...${{ messages, chosen, setChosen, selected, setSelected }} selectable=${read?.state === "ready"} />
          ${message &&
          html`
            <${Message}
              key=${`${found.queue_id} ${message.id}`}
              message=${message}
              queue=${queue}
              read=${reader(queue, message, found.queue_id)}
              facts=${[
                [isStream ? "Offset" : "Id", String(message.id)],
                ["Protocol", `AMQP ${message.protocol}`],
                ["Deliveries", message.deliveries > 0 && String(message.deliveries)],
                ["Failed deliveries", message.failures > 0 && String(message.failures)],
                ["Unacked for", message.unacked_age !== null && `at least ${duration(1000 * message.unacked_age)}`],
                ["Ready at", message.ready_at && time(message.ready_at)],
                ["Held by", message.holder && `consumer ${message.holder.consumer_tag} of connection ${message.holder.connection}, channel ${message.holder.channel}`],
              ]}
              actions=${!isStream && mayOperate && read?.state === "ready" && html`<button onClick=${() => openDialog("Edit and resend", () => html`<${Resend} queue=${queue} id=${message.id} queueId=${found.queue_id} message=${message} done=${again} />`)}>Edit and resend…</button>`}
            />
          `}
        </div>
      `}
      ${found.cursor &&
      html`
        <div class="row">
          <button disabled=${busy} onClick=${() => load(read, { ...found, rest: undefined })}>${isSearch && (messages.length === 0 || messages.length % PAGE) ? "Continue search" : "More"}</button>
          ${isSearch && read.state !== "unacked" && found.rest?.cursor !== null && html`<button disabled=${busy} onClick=${countRest}>Count all</button>`}
        </div>
      `}
    `}
  `;
}

const previewOf = ({ payload, payload_encoding: encoding }) => (encoding === "string" ? payload.slice(0, 120) : "(binary)");

/** Messages to choose from; `selectable` adds boxes that select some. */
export function MessageList({ messages, chosen, setChosen, selected, setSelected, selectable }) {
  const all = messages.length > 0 && messages.every(({ id }) => selected.has(id));
  const toggle = (id) => {
    const next = new Set(selected);
    if (!next.delete(id)) {
      next.add(id);
    }
    setSelected(next);
  };
  return html`
    <div>
      ${selectable &&
      html`
        <label class="check">
          <input type="checkbox" checked=${all} onChange=${() => setSelected(all ? new Set() : new Set(messages.map(({ id }) => id)))} />
          <span>Select all shown</span>
        </label>
      `}
      <ul class="list" aria-label="Messages">
        ${messages.map(
          (message, index) => html`
            <li key=${message.id} class="choice">
              ${selectable && html`<input type="checkbox" aria-label=${`Select message ${message.id}`} checked=${selected.has(message.id)} onChange=${() => toggle(message.id)} />`}
              <button aria-pressed=${index === chosen} onClick=${() => setChosen(index)}>
                <span class="muted num">${message.id}</span>
                <span class="clip" title=${message.routing_key}>${message.routing_key || "(no routing key)"}</span>
                <span class="muted small">${bytes(message.payload_bytes)}${noteOf(message)}</span>
                <span class="preview clip" title=${previewOf(message)}>${previewOf(message)}</span>
              </button>
            </li>
          `,
        )}
      </ul>
    </div>
  `;
}

function Delete({ queue, what, body, done }) {
  async function submit() {
    const result = await relocate(placePath(queue, "messages", "delete"), body);
    done();
    return summary("Deleted", result);
  }
  return html`
    <${ChangeForm} label="Delete messages" tone="danger" submit=${submit}>
      <p>Deletes ${what} from <b>${queue.name}</b> without dead-lettering them. This cannot be undone.</p>
    <//>
  `;
}

/** Publishes a changed copy of a message and deletes the message, in one step. */
function Resend({ queue, id, queueId, message, done }) {
  const origin = message.properties?.headers?.["x-death"]?.[0]?.queue;
  const whole = message.payload_encoding === "string" ? new TextEncoder().encode(message.payload).length : atob(message.payload).length;
  const complete = whole === message.payload_bytes;
  const { headers = {}, ...rest } = message.properties ?? {};
  const kept = Object.fromEntries(Object.entries(headers).filter(([name]) => !name.startsWith("x-death") && !name.startsWith("x-first-death")));
  const state = useFields({
    exchange: origin ? "" : message.exchange,
    routing_key: origin ?? message.routing_key,
    payload: message.payload,
    base64: message.payload_encoding === "base64",
    properties: JSON.stringify({ ...rest, ...(Object.keys(kept).length ? { headers: kept } : {}) }, null, 2),
  });
  const [values] = state;
  async function submit() {
    const changed = {
      id,
      queue_id: queueId,
      exchange: values.exchange,
      routing_key: values.routing_key,
      properties: parseObject(values.properties, "Properties"),
      ...(complete ? { payload: values.payload, payload_encoding: values.base64 ? "base64" : "string" } : {}),
    };
    const result = await call("POST", placePath(queue, "messages", "resend"), changed);
    if (!result.messages) {
      throw new Error(summary("Sent", result));
    }
    done();
    return "Sent the changed message, and deleted the old one";
  }
  return html`
    <${ChangeForm} label="Resend message" submit=${submit}>
      <div class="pair">
        <${Text} label="Exchange" name="exchange" state=${state} maxlength="255" hint="Empty: the default exchange" />
        <${Text} label="Routing key" name="routing_key" state=${state} maxlength="255" />
      </div>
      ${complete
        ? html`<${Area} label="Payload" name="payload" rows="6" state=${state} /><${Check} label="Payload is base64" name="base64" state=${state} />`
        : html`<${Note}>The payload is too large to be edited here; it stays as it is.<//>`}
      <${Area} label="Properties" name="properties" rows="6" state=${state} />
    <//>
  `;
}

// The dead letters of a queue in groups: by the reason, the queue and the exchange of their death, and by a header.

import { call } from "../api.js";
import { bytes, count, exchangeName, plural, time } from "../format.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { refresh } from "../live.js";
import { link, route, setQuery } from "../route.js";
import { openDialog } from "./dialog.js";
import { Text, useFields } from "./form.js";
import { changeColumn, Failure, Note, Panel, QueueLink } from "./parts.js";
import { conditionText, placePath, Relocate } from "./relocate.js";
import { useRole } from "./roles.js";
import { SmallTable } from "./table.js";

// Messages that are counted before the user must ask for more.
const MAX_COUNTED = 100_000;
// Headers in which frameworks describe the exception that made a consumer give up.
const HEADERS = ["x-exception-message", "x-exception-type", "MT-Fault-Message", "MT-Fault-ExceptionType", "NServiceBus.ExceptionInfo.Message", "NServiceBus.ExceptionInfo.ExceptionType"];

const keyOf = (group) => JSON.stringify(group.where);

/** Adds the groups of a later answer to those of earlier ones. */
function merge(earlier, answer) {
  const groups = new Map(earlier.groups.map((group) => [keyOf(group), group]));
  for (const group of answer.groups) {
    const known = groups.get(keyOf(group));
    groups.set(keyOf(group), known ? { ...known, messages: known.messages + group.messages, bytes: known.bytes + group.bytes } : group);
  }
  return { groups: [...groups.values()], others: earlier.others + answer.others, examined: earlier.examined + answer.examined, cursor: answer.cursor };
}

const NOTHING = { groups: [], others: 0, examined: 0, cursor: "" };

export function DeadLetters({ queue }) {
  const { query } = route.value;
  const state = useFields({ header: query.header ?? HEADERS[0] });
  const [{ header }] = state;
  const [found, setFound] = useState(null);
  const [counted, setCounted] = useState(header); // the header that the groups are for
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const controller = useRef(null);

  async function load(earlier = NOTHING) {
    controller.current?.abort();
    const { signal } = (controller.current = new AbortController());
    setBusy(true);
    setError(null);
    let total = earlier;
    const until = earlier.examined + MAX_COUNTED;
    try {
      do {
        const body = { header, cursor: total.cursor };
        total = merge(total, await call("POST", placePath(queue, "messages", "dead-letters"), body, { signal }));
        setFound(total);
        setCounted(header);
      } while (total.cursor && total.examined < until);
    } catch (failure) {
      if (failure.name === "AbortError") {
        return;
      }
      setError(failure);
    }
    setBusy(false);
  }
  useEffect(() => {
    load();
    return () => controller.current?.abort();
  }, []);

  const again = () => {
    refresh();
    load();
  };
  function submit(event) {
    event.preventDefault();
    setQuery({ header: header === HEADERS[0] ? "" : header });
    load();
  }
  const may = useRole(queue);
  const replay = (group) => {
    const what = `all messages with ${group.where.map(conditionText).join(", ")}`;
    openDialog("Replay dead letters", () => html`<${Relocate} queue=${queue} what=${what} body=${{ where: group.where }} done=${again} verb="Replay" />`);
  };
  const columns = [
    { id: "reason", title: "Reason", width: 130, cell: ({ reason }) => reason ?? html`<span class="muted">no dead letter</span>` },
    { id: "queue", title: "Died in", cell: (group) => group.queue !== null && html`<${QueueLink} vhost=${queue.vhost} name=${group.queue} />` },
    { id: "exchange", title: "From exchange", rank: 2, value: (group) => (group.exchange === null ? "" : exchangeName(group.exchange)) },
    ...(counted ? [{ id: "header", title: counted, rank: 1, cell: (group) => html`<span title=${group.header ?? ""}>${group.header ?? "–"}</span>` }] : []),
    { id: "messages", title: "Messages", width: 100, num: true, cell: (group) => count(group.messages) },
    { id: "bytes", title: "Bytes", width: 100, num: true, rank: 3, cell: (group) => bytes(group.bytes) },
    changeColumn(
      (group) => html`
        <a href=${link(["queues", queue.vhost, queue.name], { tab: "messages", where: keyOf(group) })}>Browse</a>
        <button class="quiet" onClick=${() => replay(group)} disabled=${!may("operator", "read")}>Replay…</button>
      `,
    ),
  ];
  const status = found && `${plural(found.examined, "message")} in ${plural(found.groups.length, "group")}${found.cursor ? " so far" : ""}`;
  return html`
    <${Panel} title="Dead letters">
      <form class="form" onSubmit=${submit}>
        <div class="pair">
          <${Text} label="Header of the exception" name="header" state=${state} list="exception-headers" maxlength="255" hint="Empty: groups by reason, queue and exchange alone" />
          <datalist id="exception-headers">${HEADERS.map((name) => html`<option key=${name} value=${name}></option>`)}</datalist>
        </div>
        <div class="row">
          <button class="primary" disabled=${busy}>Group</button>
          <span class="muted" role="status">${status ?? "Counting…"}</span>
          ${found?.cursor && html`<button type="button" disabled=${busy} onClick=${() => load(found)}>Count more</button>`}
        </div>
      </form>
    <//>
    <${Failure} error=${error} />
    ${found?.others > 0 && html`<${Note}>${plural(found.others, "message")} of more groups than are shown. Choose a header with fewer values.<//>`}
    ${found &&
    html`
      <${Panel} title="Groups" flush>
        <${SmallTable} label="Groups of dead letters" rows=${found.groups} columns=${columns} keyOf=${keyOf} initial="messages" initialDescending empty="No message is here." />
      <//>
    `}
  `;
}

const timeOf = (death) => (typeof death.time === "string" ? Date.parse(death.time) : NaN);

/** The way of a dead letter as a time line, from its first death to the queue in which it is now. */
export function Trail({ deaths, queue }) {
  if (!Array.isArray(deaths) || deaths.length === 0) {
    return null;
  }
  const found = deaths.filter((death) => death !== null && typeof death === "object").reverse();
  return html`
    <h3>Trail</h3>
    <ol class="trail" aria-label="Trail of the message">
      ${found.map((death, index) => html`<li key=${index}><${Death} death=${death} vhost=${queue.vhost} /></li>`)}
      <li key="now">now in <b>${queue.name}</b></li>
    </ol>
  `;
}

function Death({ death, vhost }) {
  const keys = Array.isArray(death["routing-keys"]) ? death["routing-keys"].map(String).join(", ") : "";
  return html`
    ${Number.isFinite(timeOf(death)) && html`<time datetime=${death.time}>${time(timeOf(death))}</time> `}
    ${String(death.reason ?? "died")} in <${QueueLink} vhost=${vhost} name=${String(death.queue ?? "")} />,
    ${" "}${plural(Number(death.count) || 1, "time")}, published to ${exchangeName(String(death.exchange ?? ""))}
    ${keys && html` with <code>${keys}</code>`}
  `;
}

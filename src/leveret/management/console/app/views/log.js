// The broker's log: the latest records, and further ones as they are logged.

import { send, serverEvents, withQuery } from "../api.js";
import { count, plural, time } from "../format.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { route, setQuery } from "../route.js";
import { closeDialog, openDialog } from "../ui/dialog.js";
import { FilterField, VhostChoice } from "../ui/list.js";
import { Badge, Facts, Failure, Title } from "../ui/parts.js";
import { Table } from "../ui/table.js";

const LOG = "/leveret/log";

// Records that are shown, and those that the page begins with.
const MAX_SHOWN = 1000;
const FIRST = 500;
const RETRY_DELAY = 2000;
const LEVELS = ["debug", "info", "warning", "error", "critical"];
const TONES = { warning: "warn", error: "bad", critical: "bad" };
const FILTERS = [
  ["text", "Text", 1000],
  ["logger", "Logger", 255],
  ["connection", "Connection", 16],
];

/** Waits, unless the signal ends it. */
const pause = (signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, RETRY_DELAY);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });

/** Returns the records of a target, the newest first, with the number of dropped ones. Follows them unless `paused`. */
function useLog(target, paused) {
  const [records, setRecords] = useState([]);
  const [dropped, setDropped] = useState(0);
  const [error, setError] = useState(null);
  // The target, the id of the last event, the number of records so far, and those that earlier streams dropped.
  const place = useRef({});

  async function read(signal) {
    const here = place.current;
    const response = await send("GET", withQuery(target, { last_event_id: here.id }), { signal, headers: { accept: "text/event-stream" } });
    setError(null);
    const before = here.dropped;
    for await (const { name, data, id } of serverEvents(response.body)) {
      if (name === "record") {
        here.count += 1;
        const record = { ...data, number: here.count };
        setRecords((old) => [record, ...old.slice(0, MAX_SHOWN - 1)]);
      } else if (name === "counts") {
        here.dropped = before + data.dropped;
        setDropped(here.dropped);
      } else if (name === "reset") {
        setRecords([]);
      }
      if (id && name !== "hello") {
        here.id = id;
      }
    }
  }

  useEffect(() => {
    if (paused) {
      return undefined;
    }
    const controller = new AbortController();
    const { signal } = controller;
    if (place.current.target !== target) {
      place.current = { target, id: "", count: 0, dropped: 0 };
      setRecords([]);
      setDropped(0);
    }
    (async () => {
      while (!signal.aborted) {
        try {
          await read(signal);
        } catch (failure) {
          if (signal.aborted) {
            return;
          }
          setError(failure);
          if (failure.status !== 0 && failure.status !== 503) {
            return; // the conditions are invalid, or the user may not read the log any more
          }
        }
        await pause(signal);
      }
    })();
    return () => controller.abort();
  }, [target, paused]);
  return { records, dropped, error };
}

function only(name, value) {
  closeDialog();
  setQuery({ [name]: value });
}

/** A record with its whole text. */
function Details({ record }) {
  return html`
    <${Facts}
      items=${[
        ["Time", time(record.time)],
        ["Level", record.level],
        ["Process", record.process],
        ["Logger", html`${record.logger} <button class="quiet" onClick=${() => only("logger", record.logger)}>Only this logger</button>`],
        ["Connection", record.connection !== null && html`${record.connection} <button class="quiet" onClick=${() => only("connection", record.connection)}>Only this connection</button>`],
        ["Vhost", record.vhost],
        ["User", record.user],
        ["Client", record.peer],
      ]}
    />
    <pre class="payload">${record.message}</pre>
    ${record.exception && html`<pre class="payload">${record.exception}</pre>`}
    <div class="end form"><div class="end"><button onClick=${closeDialog}>Close</button></div></div>
  `;
}

const COLUMNS = [
  { id: "time", title: "Time", width: 180, rank: 1, value: (row) => time(row.time) },
  { id: "level", title: "Level", width: 88, cell: (row) => html`<${Badge} tone=${TONES[row.level] ?? ""}>${row.level}<//>` },
  { id: "logger", title: "Logger", width: 170, rank: 2 },
  { id: "message", title: "Message", cell: (row) => html`<button class="link" data-row title=${row.message} onClick=${() => openDialog("Log record", () => html`<${Details} record=${row} />`)}>${row.message}</button>` },
  { id: "vhost", title: "Vhost", width: 100, rank: 4 },
  { id: "connection", title: "Connection", width: 96, num: true, rank: 3 },
  { id: "process", title: "Process", width: 80, rank: 5 },
];

export function LogView() {
  const { query } = route.value;
  const [paused, setPaused] = useState(false);
  const { level = "", vhost = "" } = query;
  const conditions = { level, vhost, ...Object.fromEntries(FILTERS.map(([name]) => [name, query[name]])) };
  const { records, dropped, error } = useLog(withQuery(LOG, { ...conditions, limit: FIRST }), paused);
  const state = paused ? "Paused" : error ? "Interrupted" : "Following";
  return html`
    <${Title}
      title="Log"
      actions=${html`<button aria-pressed=${paused} onClick=${() => setPaused(!paused)}>${paused ? "Resume" : "Pause"}</button>`}
    />
    <div class="toolbar" role="search">
      <select aria-label="Lowest level" value=${level} onChange=${(event) => setQuery({ level: event.target.value })}>
        <option value="" selected=${level === ""}>All levels</option>
        ${LEVELS.slice(1).map((name) => html`<option key=${name} value=${name} selected=${name === level}>${name}${name !== "critical" && " and above"}</option>`)}
      </select>
      ${FILTERS.map(
        ([name, title, length], index) => html`
          <${FilterField} key=${name} class="filter" data-filter=${index === 0 || undefined} aria-label=${title} placeholder=${title} maxlength=${length} inputmode=${name === "connection" ? "numeric" : undefined} value=${query[name] ?? ""} onChoice=${(chosen) => setQuery({ [name]: chosen })} />
        `,
      )}
      <${VhostChoice} value=${vhost} />
      <span class="muted" role="status">${state}${dropped > 0 && `; ${count(dropped)} dropped: too many were logged at a time`}</span>
      <span class="muted">${plural(records.length, "record")}</span>
    </div>
    <${Failure} error=${error} />
    <${Table} label="Log records" fill columns=${COLUMNS} total=${records.length} row=${(index) => records[index]} keyOf=${(row) => row.number} empty="No record matches so far." />
  `;
}

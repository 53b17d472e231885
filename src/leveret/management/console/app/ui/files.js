// Messages of a queue as files: export, and import with a report.

import { BASE, path, send, withQuery } from "../api.js";
import { exchangePath, plural } from "../format.js";
import { html, useRef, useState } from "../html.js";
import { ChangeForm } from "./dialog.js";
import { Choice, Text, useFields } from "./form.js";
import { Note, toast } from "./parts.js";
import { placePath } from "./relocate.js";

// Bytes of a request: a file is sent in parts, so that its size has no limit and a request is short.
const PART = 2 << 20;
const MAX_SHOWN = 100;
const LINE_END = 10;

/**
 * Has the browser save messages of a queue. `wanted` has the conditions or the ids of messages, `what` is their text.
 *
 * The browser writes the file while it arrives; an answer other than success is shown before.
 */
export async function exportMessages(queue, wanted, what) {
  const { where, ids, ...rest } = wanted;
  const parameters = { ...rest, where: where?.length ? JSON.stringify(where) : "", ids: ids?.join(",") };
  const target = withQuery(placePath(queue, "messages", "export"), parameters);
  try {
    const { body } = await send("GET", withQuery(target, { count: 1 }));
    await body.cancel();
  } catch (error) {
    toast(error.message, "bad");
    return;
  }
  const anchor = document.createElement("a");
  anchor.href = new URL(`.${target}`, BASE);
  anchor.download = "";
  anchor.click();
  toast(`The browser saves ${what}`);
}

const TARGETS = [
  ["queue", "This queue"],
  ["origin", "The exchange of each message"],
  ["exchange", "One exchange"],
];

/** Returns the path of an import. */
function pathOf({ vhost, name }, { target, exchange, routing_key: key }) {
  if (target === "queue") {
    return placePath({ vhost, name }, "messages", "import");
  }
  if (target === "origin") {
    return path("leveret", "vhosts", vhost, "messages", "import");
  }
  return withQuery(path("leveret", "exchanges", vhost, exchangePath(exchange), "messages", "import"), { routing_key: key });
}

/** Yields a file in parts that end with whole lines: `{content, lines, share}`, where `share` of the file is read. */
async function* partsOf(file) {
  let rest = new Uint8Array(0);
  for (let at = 0; at < file.size || rest.length > 0; at += PART) {
    const read = new Uint8Array(await file.slice(at, at + PART).arrayBuffer());
    const data = new Uint8Array(rest.length + read.length);
    data.set(rest);
    data.set(read, rest.length);
    const isLast = at + PART >= file.size;
    const end = isLast ? data.length : data.lastIndexOf(LINE_END) + 1;
    rest = data.slice(end);
    if (end > 0) {
      const content = data.subarray(0, end);
      yield { content, lines: content.reduce((count, byte) => count + (byte === LINE_END), 0), share: Math.min(at + PART, file.size) / file.size };
    }
    if (isLast) {
      return;
    }
  }
}

const NOTHING = { lines: 0, imported: 0, unroutable: 0, refused: 0, problems: [], stopped: "" };

/** Returns the sum of two reports; the lines of the second follow `before` lines. */
function added(total, report, before) {
  const problems = report.problems.map(({ line, reason }) => ({ line: before + line, reason }));
  const uncertain = report.uncertain?.map((line) => before + line);
  return {
    lines: before + report.lines,
    imported: total.imported + report.imported,
    unroutable: total.unroutable + report.unroutable,
    refused: total.refused + report.refused,
    problems: [...total.problems, ...problems].slice(0, MAX_SHOWN),
    stopped: report.stopped + (uncertain ? `; messages of lines ${uncertain[0]} to ${uncertain[1]} may be published or not` : ""),
  };
}

/** Publishes the messages of a file, and calls `progress(report, share)` after each part. Returns the report. */
async function importFile(file, target, signal, progress) {
  let total = NOTHING;
  let before = 0;
  for await (const { content, lines, share } of partsOf(file)) {
    let report;
    try {
      report = await (await send("POST", target, { content, signal })).json();
    } catch (error) {
      const isRefused = error.status > 0;
      if (isRefused && !error.answer?.problems && total.lines === 0) {
        throw error;
      }
      const reason = error.name === "AbortError" ? "the import was stopped" : error.message;
      const stopped = isRefused ? reason : `${reason}; messages behind line ${before} may be published or not`;
      report = error.answer?.problems ? error.answer : { ...NOTHING, stopped };
    }
    total = added(total, report, before);
    progress(total, share);
    if (total.stopped) {
      break;
    }
    before += lines;
  }
  return total;
}

const summary = ({ imported, unroutable, refused, lines }) =>
  [
    `Imported ${plural(imported, "message")} of ${plural(lines, "line")}`,
    unroutable && `no queue would get ${plural(unroutable, "message")}`,
    refused && `${plural(refused, "line")} refused`,
  ]
    .filter(Boolean)
    .join("; ");

/** The form that publishes the messages of a file. */
export function ImportMessages({ queue, done }) {
  const state = useFields({ target: "queue", exchange: "", routing_key: "" });
  const [values] = state;
  const [file, setFile] = useState(null);
  const [report, setReport] = useState(null);
  const [share, setShare] = useState(null);
  const controller = useRef(null);
  async function submit() {
    controller.current = new AbortController();
    setReport(null);
    setShare(0);
    try {
      const found = await importFile(file, pathOf(queue, values), controller.current.signal, (so_far, part) => {
        setReport(so_far);
        setShare(part);
      });
      setReport(found);
    } finally {
      setShare(null);
      done();
    }
    return "";
  }
  return html`
    <${ChangeForm} label="Import messages" stay submit=${submit}>
      <p>Publishes the messages of an export, one per line.</p>
      <label class="field"><span>File</span><input type="file" required accept=".jsonl,.json,.ndjson" onChange=${(event) => setFile(event.target.files[0])} /></label>
      <${Choice} label="Target" name="target" state=${state} options=${TARGETS} />
      ${values.target === "queue" && html`<p class="small muted">Messages keep their exchanges and routing keys; no other queue gets them.</p>`}
      ${values.target === "exchange" &&
      html`
        <div class="pair">
          <${Text} label="Exchange" name="exchange" state=${state} maxlength="255" hint="Empty: the default exchange" />
          <${Text} label="Routing key" name="routing_key" state=${state} maxlength="255" hint="Empty: that of each message" />
        </div>
      `}
      ${share !== null &&
      html`
        <div class="row">
          <progress aria-label="Progress of the import" value=${share} max="1"></progress>
          <button type="button" onClick=${() => controller.current.abort()}>Stop</button>
        </div>
      `}
      ${report && html`<${Report} report=${report} />`}
    <//>
  `;
}

const Report = ({ report }) => html`
  <${Note} tone=${report.stopped || report.refused || report.unroutable ? "warn" : ""}>${summary(report)}.${report.stopped && ` The rest was not published: ${report.stopped}.`}<//>
  ${report.problems.length > 0 &&
  html`
    <ul aria-label="Lines that were not imported">
      ${report.problems.map(({ line, reason }) => html`<li key=${line}>Line ${line}: ${reason}</li>`)}
    </ul>
  `}
`;

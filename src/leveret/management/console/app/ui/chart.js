// Charts of statistics over time.
//
// Points come from the history that the API keeps: in its answers for the last hour, and in a list of its own for longer ranges.
// While it has none, the console shows the values that it has seen itself since the page was opened.

import uPlot from "../../vendor/uplot.js";
import { has, withQuery } from "../api.js";
import { useResource } from "../data.js";
import { at } from "../format.js";
import { html, useEffect, useMemo, useRef } from "../html.js";
import { route, setQuery } from "../route.js";
import { theme } from "../theme.js";

/** Ranges of history: seconds, seconds between points, and the text. */
export const RANGES = [
  [60, 1, "1 min"],
  [600, 5, "10 min"],
  [3600, 60, "1 h"],
  [28800, 600, "8 h"],
  [86400, 1800, "24 h"],
  [2592000, 43200, "30 d"],
];
const DEFAULT_RANGE = 600;

// Points that the console keeps of each object that it has shown.
const MAX_SEEN = 720;
const MAX_OBJECTS = 50;
const seen = new Map();

/** Returns the range that the URL asks for. */
export function useRange() {
  const wanted = Number(route.value.query.range ?? DEFAULT_RANGE);
  return RANGES.find(([seconds]) => seconds === wanted) ?? RANGES[1];
}

/** Returns the part of the range that the URL asks for, as two times in seconds; null for the whole range. */
function useZoom() {
  const { from, to } = route.value.query;
  return Number(from) > 0 && Number(to) > Number(from) ? [Number(from), Number(to)] : null;
}

/** Returns the parameters that ask the API for history. */
export function historyParameters([age, step]) {
  return {
    lengths_age: age, lengths_incr: step,
    msg_rates_age: age, msg_rates_incr: step,
    data_rates_age: age, data_rates_incr: step,
  };
}

const HISTORY = "/leveret/history";
const HOUR = 3600;
const DAY = 24 * HOUR;

/** Returns the history of a subject for ranges of more than an hour: `{vhost, queue}`, or `{}` for the broker; null for none. */
export function useKept(subject, [age]) {
  const wanted = age > HOUR && subject && has(HISTORY);
  const step = age > DAY ? "hour" : "minute";
  return useResource(wanted ? withQuery(HISTORY, { ...subject, step, age }) : null, { slow: true }).value;
}

const WHOLE = { from: "", to: "" };

export function RangeChoice() {
  const [current] = useRange();
  return html`
    ${useZoom() && html`<button onClick=${() => setQuery(WHOLE)}>Whole range</button>`}
    <label class="check small muted">
      Range
      <select value=${String(current)} onChange=${(event) => setQuery({ ...WHOLE, range: event.target.value })}>
        ${RANGES.map(([seconds, , text]) => html`<option value=${String(seconds)} selected=${seconds === current}>${text}</option>`)}
      </select>
    </label>
  `;
}

/**
 * Returns the points of an object's statistics: `[times in seconds, values, values...]`.
 *
 * Each series is `{key, kind, kept}`: a gauge shows its values, a rate the change of its counter per second. `kept` has its names
 * in the history.
 */
function points(id, object, series, [age], kept) {
  if (kept?.samples.length > 1) {
    return fromKept(kept, series);
  }
  const details = series.map(({ key }) => at(object, `${key}_details`));
  if (details.every((found) => found?.samples?.length > 1)) {
    return fromSamples(details, series);
  }
  return fromSeen(id, object, series, details, age);
}

function fromKept({ samples: known, step }, series) {
  const samples = withIdle(known, 1000 * step);
  const valueOf = (sample, { kind, kept }) => {
    const sum = kept.reduce((total, name) => total + sample[name], 0);
    return kind === "gauge" ? sum : sample.idle ? 0 : sum / step;
  };
  return [samples.map(({ timestamp }) => timestamp / 1000), ...series.map((item) => samples.map((sample) => valueOf(sample, item)))];
}

/** Returns samples with those of the periods without messages, which the history omits. */
function withIdle(samples, step) {
  const end = Date.now() - 2 * step;
  return samples.flatMap((sample, index) => {
    const missing = Math.ceil(((samples[index + 1]?.timestamp ?? end) - sample.timestamp) / step) - 1;
    return [sample, ...Array.from({ length: Math.max(missing, 0) }, (_, at) => ({ ...sample, timestamp: sample.timestamp + (at + 1) * step, idle: true }))];
  });
}

function fromSamples(details, series) {
  // The API sends the newest sample first.
  const samples = details.map((found) => [...found.samples].reverse());
  const times = samples[0].map(({ timestamp }) => timestamp / 1000);
  const columns = series.map(({ kind }, index) =>
    times.map((_, at) => {
      const sample = samples[index][at];
      if (kind === "gauge" || !sample) {
        return sample?.sample ?? null;
      }
      const before = samples[index][at - 1];
      return before ? Math.max(0, (1000 * (sample.sample - before.sample)) / (sample.timestamp - before.timestamp)) : null;
    }),
  );
  return [times, ...columns];
}

function fromSeen(id, object, series, details, age) {
  const now = Date.now() / 1000;
  let rows = seen.get(id) ?? [];
  if (object && rows.at(-1)?.object !== object) {
    const values = series.map(({ key, kind }, index) => (kind === "gauge" ? at(object, key) : details[index]?.rate) ?? null);
    rows = [...rows, { time: now, object, values }].slice(-MAX_SEEN);
    seen.delete(id);
    seen.set(id, rows);
    if (seen.size > MAX_OBJECTS) {
      seen.delete(seen.keys().next().value);
    }
  }
  const shown = rows.filter(({ time }) => time > now - age);
  return [shown.map(({ time }) => time), ...series.map((_, index) => shown.map(({ values }) => values[index]))];
}

/**
 * A chart with its legend.
 *
 * Args (as properties):
 *   id: The identity of the object and of the chart.
 *   object: The current answer of the API.
 *   kept: The history from `useKept`, if any.
 *   series: `{key, label, color, kind, kept}` each; `color` names a custom property of the style sheet.
 *   format(value): The text of a value.
 *   events: Events to mark: `[{time, text}]`.
 *   other: Another object to compare with: `{id, name, object, kept}`; its lines are dashed.
 */
export function Chart({ id, label, object, series, format, kept, events = NONE, other = null }) {
  const range = useRange();
  const own = useMemo(() => points(id, object, series, range, kept), [id, object, range, kept]);
  const others = useMemo(() => other?.object && points(other.id, other.object, series, range, other.kept), [other?.id, other?.object, range, other?.kept]);
  const data = useMemo(() => (others ? uPlot.join([own, others]) : own), [own, others]);
  const lines = others ? [...series, ...series.map((line) => ({ ...line, label: `${line.label} of ${other.name}`, fill: false, dash: DASH }))] : series;
  const latest = data.slice(1).map((values) => values.findLast((value) => value !== undefined));
  return html`
    <figure class="chart">
      <${Plot} ...${{ data, series: lines, format, label, range, events, zoom: useZoom() }} />
      <figcaption class="legend">
        ${lines.map(
          ({ label: text, color, dash }, index) => html`
            <span key=${text}><i class="swatch ${color} ${dash ? "dashed" : ""}" aria-hidden="true"></i>${text} <b>${format(latest[index] ?? NaN)}</b></span>
          `,
        )}
      </figcaption>
    </figure>
  `;
}

const NONE = [];
const DASH = [5, 4];
// Pixels that a drag must have at least to zoom.
const MIN_DRAGGED = 5;

/** Zooms all charts of the view to the part of this one that the user has selected. */
function zoomToSelection(plot) {
  const { left, width } = plot.select;
  plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  if (width >= MIN_DRAGGED) {
    setQuery({ from: Math.floor(plot.posToVal(left, "x")), to: Math.ceil(plot.posToVal(left + width, "x")) });
  }
}

function drawEvents(plot, events, color) {
  const { ctx, bbox, scales } = plot;
  ctx.save();
  ctx.strokeStyle = color;
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
  ctx.beginPath();
  for (const { time } of events) {
    if (time >= scales.x.min && time <= scales.x.max) {
      const x = Math.round(plot.valToPos(time, "x", true));
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
    }
  }
  ctx.stroke();
  ctx.restore();
}

function Plot({ data, series, format, label, range, events, zoom }) {
  const element = useRef(null);
  const plot = useRef(null);
  const dark = theme.value;
  const lines = series.map((line) => line.label).join("\n");
  // What the functions of the plot need of the last rendering.
  const shown = useRef(null);
  shown.current = { events, zoom };

  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(`--${name}`).trim();
    const axis = { stroke: color("muted"), grid: { stroke: color("line"), width: 1 }, ticks: { show: false }, font: `11px ${color("sans")}` };
    const box = element.current;
    plot.current = new uPlot(
      {
        width: box.clientWidth || 300,
        height: 168,
        legend: { show: false },
        cursor: {
          y: false,
          points: { size: 6 },
          drag: { x: true, y: false, setScale: false },
          bind: { dblclick: () => () => setQuery(WHOLE) },
        },
        hooks: {
          setSelect: [zoomToSelection],
          draw: [(plot) => drawEvents(plot, shown.current.events, color("muted"))],
        },
        scales: {
          x: { time: true, range: (plot) => shown.current.zoom ?? lastPart(plot.data[0], range[0]) },
          y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] },
        },
        axes: [
          { ...axis, size: 28, space: 72, values: (_, ticks) => ticks.map((tick) => clock(tick, shown.current.zoom ? shown.current.zoom[1] - shown.current.zoom[0] : range[0])) },
          { ...axis, size: 58, values: (_, ticks) => ticks.map((tick) => format(tick)) },
        ],
        series: [
          {},
          ...series.map((item) => ({
            label: item.label,
            stroke: color(item.color),
            width: 1.6,
            dash: item.dash,
            fill: item.fill ? `${color(item.color)}1f` : undefined,
            // A line needs two points.
            points: { show: (plot) => plot.data[0].length < 2 },
          })),
        ],
      },
      data,
      box,
    );
    const observer = new ResizeObserver(() => plot.current.setSize({ width: Math.max(box.clientWidth, 120), height: 168 }));
    observer.observe(box);
    return () => {
      observer.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [dark, range, label, lines]);

  useEffect(() => {
    plot.current?.setData(data);
  }, [data, events, zoom?.join()]);

  return html`<div class="plot" ref=${element} role="img" aria-label=${label}></div>`;
}

// Seconds that a chart shows at least.
const MIN_SHOWN = 60;

/** Returns the scale of the time axis: up to the latest point, and no longer than there are points. */
function lastPart(times, age) {
  const end = times?.at(-1) ?? Date.now() / 1000;
  return [Math.max(end - age, Math.min(times?.[0] ?? end, end - MIN_SHOWN)), end];
}

function clock(seconds, range) {
  const date = new Date(seconds * 1000);
  const pad = (value) => String(value).padStart(2, "0");
  if (range > 2 * 86400) {
    return `${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  }
  const minutes = `${pad(date.getHours())}:${pad(date.getMinutes())}`;
  return range <= 600 ? `${minutes}:${pad(date.getSeconds())}` : minutes;
}

export const MESSAGE_SERIES = [
  { key: "messages_ready", label: "Ready", color: "ready", kind: "gauge", fill: true, kept: ["ready"] },
  { key: "messages_unacknowledged", label: "Unacked", color: "unacked", kind: "gauge", kept: ["unacked"] },
];

export const RATE_SERIES = [
  { key: "message_stats.publish", label: "Publish", color: "publish", kind: "rate", kept: ["publish"] },
  { key: "message_stats.deliver_get", label: "Deliver", color: "deliver", kind: "rate", kept: ["deliver", "deliver_no_ack", "get", "get_no_ack"] },
  { key: "message_stats.ack", label: "Ack", color: "ack", kind: "rate", kept: ["ack"] },
];

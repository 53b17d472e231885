// How long the broker's event loop and its commits take.

import { has } from "../api.js";
import { useResource } from "../data.js";
import { count } from "../format.js";
import { html, useRef } from "../html.js";

// Durations that a view needs to have seen to show only these.
const ENOUGH = 20;

const text = (seconds) => (seconds < 1 ? `${Number((1000 * seconds).toPrecision(3))} ms` : `${seconds} s`);

/** Returns the upper bound of a part of the durations. */
function bound(bounds, counts, part) {
  const wanted = part * counts.reduce((sum, value) => sum + value, 0);
  let seen = 0;
  const index = counts.findIndex((value) => (seen += value) >= wanted);
  return index < bounds.length ? `≤ ${text(bounds[index])}` : `> ${text(bounds.at(-1))}`;
}

function Durations({ label, bounds, counts, since }) {
  const recent = counts.map((value, index) => value - (since?.[index] ?? 0));
  const total = (list) => list.reduce((sum, value) => sum + value, 0);
  const isRecent = total(recent) >= ENOUGH;
  const shown = isRecent ? recent : counts;
  return html`
    <dt>${label}</dt>
    <dd>
      ${total(shown) === 0
        ? "none yet"
        : html`half ${bound(bounds, shown, 0.5)}, 99 % ${bound(bounds, shown, 0.99)} <span class="muted">of ${count(total(shown))} since ${isRecent ? "you opened this view" : "the start"}</span>`}
    </dd>
  `;
}

/** Turns of the event loop and commits, as facts of a list. */
export function Timing() {
  const { value } = useResource(has("/leveret/performance") ? "/leveret/performance" : null);
  const first = useRef(null);
  if (!value) {
    return null;
  }
  if (!first.current || first.current.loop_cpu > value.loop_cpu) {
    first.current = value; // also after a restart of the broker
  }
  return html`
    <${Durations} label="Longest turns" bounds=${value.bounds} counts=${value.turns.counts} since=${first.current.turns.counts} />
    <${Durations} label="Commits" bounds=${value.bounds} counts=${value.commits.counts} since=${first.current.commits.counts} />
    <dt>Slow turns</dt>
    <dd>${count(value.slow_turns)} <span class="muted">longest ${text(value.longest_turn)}</span></dd>
  `;
}

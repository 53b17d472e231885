// Live updates: the one place that decides when the visible view reads the API again.
//
// With server-sent events, one tab of the browser (the holder of a lock) receives them and passes them to the others. Without
// them, or while they are interrupted, a tab reads every five seconds while it is visible.

import { has, send, serverEvents } from "./api.js";
import { signal } from "./html.js";

const POLL_INTERVAL = 5000;
// Minimum milliseconds between two refreshes that events cause.
const EVENT_INTERVAL = 1000;
// The receiver of events says that often that they flow; the others poll after missing it twice.
const ALIVE_INTERVAL = 5000;
const MAX_RETRY_DELAY = 30000;

/** Counts refreshes. Views that read it render again with current data. */
export const pulse = signal(0);
/** Counts refreshes that the user causes: by a change, or by asking for one. */
export const changes = signal(0);
/** The source of updates: "events", "polling" or "paused". */
export const source = signal("polling");

const EVENTS = "/leveret/events";

let paused = 0; // the time since which updates are paused
// Number of running changes that stop updates.
let changing = 0;
// Ends the reads of views when a change begins.
let reads = new AbortController();
let timer = 0;
let refreshed = 0;
let aliveUntil = 0;
let stopping = new AbortController();
let channel = null;

function beat() {
  refreshed = Date.now();
  pulse.value += 1;
}

/** Has every visible view read the API now. */
export function refresh() {
  changes.value += 1;
  beat();
}

/** Pauses or resumes updates. */
export function setPaused(value) {
  paused = value ? Date.now() : 0;
  describe();
  if (!paused) {
    refresh();
  }
}

/** Runs a change, and refreshes. Meanwhile the view is not updated, and its reads end: the change may remove what it shows. */
export async function withoutUpdates(change) {
  changing += 1;
  reads.abort();
  reads = new AbortController();
  try {
    return await change();
  } finally {
    changing -= 1;
    refresh();
  }
}

/** Returns the signal that ends a read: that of its view, or the beginning of a change, after which a refresh follows. */
export const readSignal = (signal) => AbortSignal.any([signal, reads.signal]);

export const isPaused = () => paused > 0;
/** The time in milliseconds since 1970 at which the user paused updates. */
export const pausedAt = () => paused;

/** Starts updates for a user; tabs of one user share the events. */
export function start(name) {
  stop();
  stopping = new AbortController();
  timer = setInterval(tick, 500);
  if (has(EVENTS)) {
    channel = new BroadcastChannel(`leveret-live ${location.pathname} ${name}`);
    channel.addEventListener("message", ({ data }) => receive(data));
    receiveInTurn(channel.name, stopping.signal);
  }
  refresh();
}

/** Stops updates. */
export function stop() {
  clearInterval(timer);
  stopping.abort();
  channel?.close();
  channel = null;
  aliveUntil = 0;
}

document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible" && timer && Date.now() - refreshed > EVENT_INTERVAL) {
    tick();
  }
});

let changed = false;

function tick() {
  describe();
  if (paused || changing || document.visibilityState !== "visible") {
    return;
  }
  const age = Date.now() - refreshed;
  const due = source.value === "events" ? changed && age >= EVENT_INTERVAL : age >= POLL_INTERVAL;
  if (due) {
    changed = false;
    beat();
  }
}

function describe() {
  source.value = paused ? "paused" : Date.now() < aliveUntil ? "events" : "polling";
}

let onAlert = () => {};

/**
 * Sets the function to call with events about alerts, and with `hello` when events begin to flow: the name, the data, and whether
 * this tab receives the events from the API.
 */
export function whenAlerted(alerted) {
  onAlert = alerted;
}

function receive(message, isReceiver = false) {
  aliveUntil = Date.now() + 2 * ALIVE_INTERVAL;
  describe();
  changed ||= message.kind !== "alive";
  if (message.kind === "alert") {
    onAlert(message.name, message.data, isReceiver);
  }
}

function publish(message) {
  receive(message, true);
  channel?.postMessage(message);
}

async function receiveInTurn(name, signal) {
  try {
    if (navigator.locks) {
      await navigator.locks.request(name, { signal }, () => receiveEvents(signal));
    } else {
      // Plain HTTP from another machine: the browser has no locks, so that each tab receives the events itself.
      await receiveEvents(signal);
    }
  } catch (error) {
    if (error.name !== "AbortError") {
      throw error;
    }
  }
}

async function receiveEvents(signal) {
  let delay = 1000;
  while (!signal.aborted) {
    try {
      const response = await send("GET", EVENTS, { signal, headers: { accept: "text/event-stream" } });
      delay = 1000;
      const alive = setInterval(() => publish({ kind: "alive" }), ALIVE_INTERVAL);
      publish({ kind: "alive" });
      try {
        await readEvents(response.body);
      } finally {
        clearInterval(alive);
      }
    } catch (error) {
      if (signal.aborted || error.missing || error.status === 401) {
        return;
      }
    }
    aliveUntil = 0;
    await new Promise((resolve) => setTimeout(resolve, delay));
    delay = Math.min(2 * delay, MAX_RETRY_DELAY);
  }
}

/** Reads a stream of server-sent events. Any event with data means that something changed; comments keep it alive. */
async function readEvents(body) {
  for await (const { name, data } of serverEvents(body)) {
    publish({ kind: "event" });
    if (name === "hello" || name.startsWith("alert.")) {
      publish({ kind: "alert", name, data });
    }
  }
}

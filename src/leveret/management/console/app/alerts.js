// Alerts that the broker raises: how many there are, in all views, and notifications of the browser.

import { get, has } from "./api.js";
import { count, duration, plural, rate } from "./format.js";
import { signal } from "./html.js";
import { whenAlerted } from "./live.js";
import { link } from "./route.js";

const ALERTS = "/leveret/alerts";
const NOTIFY = "leveret.notify";

/** The number of alerts that are raised. */
export const raised = signal(0);
/** Whether the browser shows a notification for each new alert. */
export const notifies = signal(localStorage.getItem(NOTIFY) !== null && isPermitted());

/** Returns whether the browser can show notifications: over HTTPS, or on the broker's machine. */
export const canNotify = () => "Notification" in window && window.isSecureContext;

function isPermitted() {
  return "Notification" in window && Notification.permission === "granted";
}

/** Turns notifications on, if the user permits them to the browser, or off. */
export async function setNotifies(wanted) {
  if (wanted && Notification.permission !== "granted" && (await Notification.requestPermission()) !== "granted") {
    throw new Error("the browser does not permit notifications of this page; change that in its settings of the site");
  }
  if (wanted) {
    localStorage.setItem(NOTIFY, "1");
  } else {
    localStorage.removeItem(NOTIFY);
  }
  notifies.value = wanted;
}

let counting = new AbortController();

/** Reads how many alerts are raised. */
export async function countAlerts() {
  if (!has(ALERTS)) {
    return;
  }
  counting.abort(); // an older answer must not arrive later
  counting = new AbortController();
  try {
    raised.value = (await get(`${ALERTS}?page=1&page_size=1`, { signal: counting.signal })).total_count;
  } catch {
    // The view shows why.
  }
}

const MEASURES = {
  depth: ({ value, threshold }) => `${plural(value, "message")}; the threshold is ${count(threshold)}`,
  growth: ({ value, threshold }) => `grows by ${rate(value)}; the threshold is ${rate(threshold)}`,
  no_consumers: ({ value }) => `${plural(value, "message")} and no consumer`,
  no_acks: ({ value, threshold }) => `no acknowledgement for ${duration(1000 * value)}; the threshold is ${duration(1000 * threshold)}`,
  ready_age: ({ value, threshold }) => `the oldest ready message is ${duration(1000 * value)} old; the threshold is ${duration(1000 * threshold)}`,
  unacked_age: ({ value, threshold }) => `the oldest unacked message is ${duration(1000 * value)} old; the threshold is ${duration(1000 * threshold)}`,
  memory: () => "the memory alarm blocks publishers",
  disk: () => "the disk alarm blocks publishers",
};

/** Returns what an alert says. */
export const describeAlert = (alert) => MEASURES[alert.kind]?.(alert) ?? alert.kind;

// Events that arrive together cause one read.
const COUNT_DELAY = 200;
let timer = 0;

whenAlerted((name, alert, isReceiver) => {
  clearTimeout(timer);
  timer = setTimeout(countAlerts, COUNT_DELAY);
  // Of several tabs, only the one that receives the events shows the notification.
  if (name === "alert.raised" && isReceiver && notifies.value && isPermitted()) {
    const shown = new Notification(`${alert.rule}: ${alert.queue || "node"}`, {
      body: describeAlert(alert),
      tag: JSON.stringify([alert.rule, alert.vhost, alert.queue]),
    });
    shown.addEventListener("click", () => {
      window.focus();
      location.hash = alert.queue ? link(["queues", alert.vhost, alert.queue]) : link(["alerts"]);
    });
  }
});

// Where the learner is: the vhost and the names of the objects of lessons, and the steps that are done. The browser keeps it.

import { signal } from "../html.js";

const KEY = "leveret.learn";
const ID = /^[0-9a-z]{6}$/;

function load() {
  try {
    const { vhost, prefix, id, done } = JSON.parse(localStorage.getItem(KEY));
    if (typeof vhost === "string" && typeof prefix === "string" && ID.test(id) && Array.isArray(done)) {
      return { vhost, prefix, id, done };
    }
  } catch {
    // Not ours, or of an earlier version.
  }
  const id = Array.from(crypto.getRandomValues(new Uint8Array(6)), (byte) => (byte % 36).toString(36)).join("");
  return { vhost: "/", prefix: "", id, done: [] };
}

/** `{vhost, prefix, id, done}`; `done` has a text for each step. The id keeps lessons apart from those of other browsers. */
export const progress = signal(load());

const nameOf = (lesson, step) => `${lesson.id}/${step.id}`;

/** Changes the vhost, the prefix or the steps that are done. */
export function setProgress(changes) {
  progress.value = { ...progress.value, ...changes };
  localStorage.setItem(KEY, JSON.stringify(progress.value));
}

export const isDone = (lesson, step) => progress.value.done.includes(nameOf(lesson, step));

export function setDone(lesson, step) {
  if (!isDone(lesson, step)) {
    setProgress({ done: [...progress.value.done, nameOf(lesson, step)] });
  }
}

/** Marks all steps of a lesson as not done. */
export function forget(lesson) {
  setProgress({ done: progress.value.done.filter((name) => !name.startsWith(`${lesson.id}/`)) });
}

/** Returns how the names of all objects of lessons begin. No other object has such a name. */
export const beginning = () => `${progress.value.prefix}learn-${progress.value.id}-`;

/** Returns the name of an object of a lesson. */
export const fullName = (short) => beginning() + short;

/** Returns the names of the objects of a lesson: `{queues, exchanges}`. */
export const objectsOf = ({ queues, exchanges }) => ({ queues: queues.map(fullName), exchanges: exchanges.map(fullName) });

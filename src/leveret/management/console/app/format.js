// Numbers, sizes and times as text.

const integers = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const decimals = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export const count = (value) => (Number.isFinite(value) ? integers.format(value) : "–");
export const short = (value) => (Number.isFinite(value) ? compact.format(value) : "–");

/** A rate per second: `1,234/s`, `0.4/s`. */
export function rate(value) {
  if (!Number.isFinite(value)) {
    return "–";
  }
  return `${Math.abs(value) < 10 ? decimals.format(value) : integers.format(value)}/s`;
}

/** A rate with its sign: growth of a queue. */
export const growth = (value) => (value > 0 ? `+${rate(value)}` : rate(value));

export function bytes(value) {
  if (!Number.isFinite(value)) {
    return "–";
  }
  let unit = 0;
  let size = value;
  while (Math.abs(size) >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? integers.format(size) : decimals.format(size)} ${UNITS[unit]}`;
}

/** A duration in milliseconds: `3 d 4 h`, `12 min`, `8 s`. */
export function duration(milliseconds) {
  const seconds = Math.floor(milliseconds / 1000);
  const parts = [
    [Math.floor(seconds / 86400), "d"],
    [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"],
    [seconds % 60, "s"],
  ];
  const first = parts.findIndex(([value]) => value > 0);
  if (first < 0) {
    return "0 s";
  }
  return parts
    .slice(first, first + 2)
    .filter(([value]) => value > 0)
    .map(([value, unit]) => `${value} ${unit}`)
    .join(" ");
}

/** A time in milliseconds since 1970 as local date and time. */
export function time(milliseconds) {
  if (!Number.isFinite(milliseconds) || milliseconds <= 0) {
    return "–";
  }
  const date = new Date(milliseconds);
  const pad = (value) => String(value).padStart(2, "0");
  return (
    `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ` +
    `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`
  );
}

/** A count with its noun: `1 queue`, `12 queues`, `2 policies`. */
export const plural = (value, noun, format = count) => `${format(value)} ${value === 1 ? noun : noun.replace(/(?<![aeiou])y$/, "ie").replace(/ch$/, "che") + "s"}`;

/** The form of a verb for a count: `agree(1, "waits", "wait")`. */
export const agree = (value, one, many) => (value === 1 ? one : many);

/** Any value of the API as one line of text. */
export function plain(value) {
  if (value === null || value === undefined) {
    return "";
  }
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** Returns the value at a dotted path of an object, or undefined. */
export function at(object, dotted) {
  return dotted.split(".").reduce((value, key) => value?.[key], object);
}

export const exchangeName = (name) => name || "(default exchange)";
/** The name of an exchange in paths of the API. */
export const exchangePath = (name) => name || "amq.default";

/** Returns bytes in base64. */
export function toBase64(data) {
  let text = "";
  for (const byte of data) {
    text += String.fromCharCode(byte);
  }
  return btoa(text);
}

// Favourite queues, streams and exchanges of the user, by vhost. They are in the storage of this browser only.

import { all, pattern, withQuery } from "./api.js";
import { signal } from "./html.js";
import { user } from "./session.js";

export const MAX_FAVOURITES = 100;
const KINDS = ["queues", "exchanges"];
// Characters of an expression that the API takes, without the parentheses.
const MAX_PATTERN = 1000;

// Counts changes, also by other tabs.
const changes = signal(0);
// The text in the storage, and the favourites in it.
let cached = { text: "", items: [] };

const keyOf = () => `leveret-favourites ${location.pathname} ${user.value?.name}`;

window.addEventListener("storage", () => {
  changes.value += 1;
});

const isValid = (item) => KINDS.includes(item?.kind) && typeof item.vhost === "string" && typeof item.name === "string";

function parse(text) {
  try {
    const items = JSON.parse(text);
    return Array.isArray(items) ? items.filter(isValid).slice(0, MAX_FAVOURITES) : [];
  } catch {
    return [];
  }
}

/** Returns the favourites as `{kind, vhost, name}`; `kind` is "queues", also for streams, or "exchanges". */
export function favourites() {
  void changes.value; // a component that asks is rendered again after a change
  let text = "[]";
  try {
    text = localStorage.getItem(keyOf()) ?? "[]";
  } catch {
    // The browser keeps nothing.
  }
  if (cached.text !== text) {
    cached = { text, items: parse(text) };
  }
  return cached.items;
}

const matches = (kind, vhost, name) => (item) => item.kind === kind && item.vhost === vhost && item.name === name;

export const isFavourite = (kind, vhost, name) => favourites().some(matches(kind, vhost, name));

/** Adds or removes a favourite. Throws `Error` if there is no room for it. */
export function setFavourite(kind, vhost, name, wanted) {
  const isIt = matches(kind, vhost, name);
  const items = favourites().filter((item) => !isIt(item));
  if (wanted) {
    if (items.length >= MAX_FAVOURITES) {
      throw new Error(`${MAX_FAVOURITES} favourites; expected fewer: remove some`);
    }
    items.push({ kind, vhost, name });
  }
  try {
    localStorage.setItem(keyOf(), JSON.stringify(items));
  } catch {
    throw new Error("the browser has no room for more favourites");
  }
  changes.value += 1;
}

/** Returns the paths of the API that list objects with the names of favourites, also in other vhosts. */
export function favouritePaths(target, query, items) {
  const paths = [];
  let names = [];
  const add = () => paths.push(withQuery(target, { ...query, name: `^(${names.join("|")})$`, use_regex: "true" }));
  for (const name of new Set(items.map((item) => pattern(item.name)))) {
    if (names.length > 0 && names.join("|").length + name.length >= MAX_PATTERN) {
      add();
      names = [];
    }
    names.push(name);
  }
  if (names.length > 0) {
    add();
  }
  return paths;
}

/** Returns the objects of all paths. */
export async function listAll(paths, options) {
  return (await Promise.all(paths.map((target) => all(target, {}, Infinity, options)))).flat();
}

// Data of views: objects and pages of lists, read again with every pulse.

import { get, withQuery } from "./api.js";
import { useEffect, useRef, useState } from "./html.js";
import { changes, pulse, readSignal } from "./live.js";

export const PAGE_SIZE = 100;
// Milliseconds between reads of what rarely changes.
const SLOW_INTERVAL = 30000;

// Milliseconds between two displays of an age.
const AGE_INTERVAL = 1000;

/** Returns an age in seconds as it is now, given a value that was read and the name of the age in it. */
export function useGrowingAge(value, name) {
  const read = useRef({ value: null, at: 0 });
  if (read.current.value !== value) {
    read.current = { value, at: Date.now() };
  }
  const age = value?.[name] ?? null;
  const [, render] = useState(0);
  useEffect(() => {
    if (age === null) {
      return undefined;
    }
    const timer = setInterval(() => render((count) => count + 1), AGE_INTERVAL);
    return () => clearInterval(timer);
  }, [age === null]);
  return age === null ? null : age + Math.floor((Date.now() - read.current.at) / 1000);
}

/**
 * Reads an object of the API and keeps it current.
 *
 * Returns `{value, error}`. While a changed path is read, `value` is undefined; when a later read fails, the last
 * value stays beside the error. A null path reads nothing. `slow` is for large or rarely changing answers: they are read again
 * after a change of this user, and twice a minute. `readPath` reads the path, by default as an object.
 */
export function useResource(target, { slow = false, readPath = get } = {}) {
  const [state, setState] = useState({ target, value: undefined, error: null });
  const busy = useRef(null);
  const missed = useRef(false);
  const count = slow ? `${changes.value} ${pulse.value && Math.floor(Date.now() / SLOW_INTERVAL)}` : pulse.value;

  function read(signal) {
    busy.current = target;
    return readPath(target, { signal: readSignal(signal) }).then(
      (value) => setState({ target, value, error: null }),
      (error) => {
        if (error.name === "AbortError") {
          missed.current &&= signal.aborted; // after a change, all views are refreshed
        } else {
          setState((old) => ({ target, value: old.target === target ? old.value : undefined, error }));
        }
      },
    );
  }

  const controller = useRef(null);
  useEffect(() => {
    controller.current?.abort();
    controller.current = new AbortController();
    busy.current = null;
    missed.current = false;
    return () => controller.current.abort();
  }, [target]);
  function update(signal) {
    read(signal).finally(() => {
      if (signal.aborted) {
        return; // another path is being read
      }
      busy.current = null;
      if (missed.current) {
        missed.current = false;
        update(signal);
      }
    });
  }
  useEffect(() => {
    if (target === null) {
      return;
    }
    // A slow answer is not asked for twice at a time, but again if something has changed meanwhile.
    if (busy.current === target) {
      missed.current = true;
    } else {
      update(controller.current.signal);
    }
  }, [target, count]);

  const current = state.target === target ? state : { value: undefined, error: null };
  return { value: current.value, error: current.error };
}

/**
 * Reads the pages of a list that are visible.
 *
 * Returns `{total, row(index), show(first, last), error}`. `show` says which rows are visible; their pages are read when they
 * are missing, and again with every pulse.
 */
export function usePages(target, parameters) {
  const source = withQuery(target, parameters);
  const [, render] = useState(0);
  const list = useRef(null);
  if (list.current?.source !== source) {
    const old = list.current;
    old?.controller.abort();
    // Rows of the old list stay visible until the first page of the new one arrives.
    list.current = new Pages(source, old, () => render((value) => value + 1));
  }
  const count = pulse.value;
  useEffect(() => {
    list.current.refresh();
  }, [source, count]);
  useEffect(() => () => list.current.controller.abort(), []);
  return list.current;
}

class Pages {
  constructor(source, old, changed) {
    this.source = source;
    this.controller = new AbortController();
    this.error = null;
    this.total = old?.total ?? 0;
    this.loaded = false;
    this.pages = old?.pages ?? new Map();
    this.stale = true;
    this.wanted = [1, 1];
    this.busy = new Set();
    this.missed = new Set();
    this.changed = changed;
  }

  row(index) {
    return this.pages.get(Math.floor(index / PAGE_SIZE) + 1)?.[index % PAGE_SIZE];
  }

  show(first, last) {
    if (!this.loaded) {
      return; // the rows on screen are those of another list
    }
    // A table that was not rendered since asks for rows of a longer list.
    const pageOf = (index) => Math.floor(Math.max(0, Math.min(index, this.total - 1)) / PAGE_SIZE) + 1;
    this.wanted = [pageOf(first), pageOf(last - 1)];
    for (let page = this.wanted[0]; page <= this.wanted[1]; page += 1) {
      if (!this.pages.has(page)) {
        this.read(page);
      }
    }
  }

  refresh() {
    for (let page = this.wanted[0]; page <= this.wanted[1]; page += 1) {
      if (this.busy.has(page)) {
        this.missed.add(page);
      } else {
        this.read(page);
      }
    }
  }

  async read(page) {
    if (this.busy.has(page)) {
      return;
    }
    this.busy.add(page);
    try {
      const parameters = { page, page_size: PAGE_SIZE };
      const answer = await get(withQuery(this.source, parameters), { signal: readSignal(this.controller.signal) });
      if (this.stale || answer.filtered_count !== this.total) {
        // Rows moved: pages that are not visible are read when they become visible.
        this.pages = new Map([...this.pages].filter(([key]) => !this.stale && this.isWanted(key)));
        this.stale = false;
      }
      this.pages.set(page, answer.items);
      this.total = answer.filtered_count;
      this.error = null;
      this.loaded = true;
    } catch (error) {
      if (error.name === "AbortError") {
        this.missed.delete(page); // after a change, all views are refreshed
        return;
      }
      if (page > 1 && error.status === 400) {
        this.wanted = [1, 1]; // the list became shorter
        this.busy.delete(1);
        this.read(1);
      } else {
        this.error = error;
        this.loaded = true;
      }
    } finally {
      this.busy.delete(page);
    }
    this.changed();
    if (this.missed.delete(page)) {
      this.read(page);
    }
  }

  isWanted(page) {
    return page >= this.wanted[0] && page <= this.wanted[1];
  }
}

// Where a message would go: as the bindings predict at once, and then as the broker says.

import { call, path } from "./api.js";
import { exchangePath } from "./format.js";
import { useEffect, useState } from "./html.js";
import { routed } from "./routing.js";
import { parseObject } from "./ui/form.js";

// Milliseconds between the last key and the request.
const TYPING_DELAY = 250;

/** Returns the properties of a form, none while their text is no object. */
function propertiesIn(text) {
  try {
    return parseObject(text, "Properties");
  } catch {
    return {};
  }
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/**
 * Returns where a message with a routing key and properties (JSON) would go, as in `routed`, and `error` if the broker refuses it.
 *
 * Without an exchange, or while the bindings are read, it returns null.
 */
export function useDestinations({ vhost, exchange, key, properties, exchanges, bindings }) {
  const [state, setState] = useState({ question: "", answer: null, error: null });
  const given = propertiesIn(properties);
  const ready = exchange !== null && exchanges && bindings;
  const exists = ready && exchanges.some(({ name }) => name === exchange);
  const question = exists ? JSON.stringify([vhost, exchange, key, given]) : "";
  useEffect(() => {
    if (!question) {
      return undefined;
    }
    const controller = new AbortController();
    const timer = setTimeout(async () => {
      const target = path("leveret", "exchanges", vhost, exchangePath(exchange), "destinations");
      try {
        const answer = await call("POST", target, { routing_key: key, properties: given }, { signal: controller.signal });
        setState({ question, answer, error: null });
      } catch (error) {
        if (error.name !== "AbortError") {
          // A user who may not publish sees the prediction.
          setState({ question, answer: null, error: error.status === 401 ? null : error });
        }
      }
    }, TYPING_DELAY);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [question, bindings]);
  if (!ready) {
    return null;
  }
  const found = routed(exchange, key, isObject(given.headers) ? given.headers : {}, exchanges, bindings);
  const { answer, error } = state.question === question ? state : { answer: null, error: null };
  if (answer === null || answer.total > answer.queues.length) {
    return { ...found, error };
  }
  const reached = new Set(answer.queues);
  const matching = found.bindings.filter(({ destination, destination_type: type }) => type === "exchange" || reached.has(destination));
  return { ...found, queues: [...reached].sort(), bindings: matching, uncertain: false, error };
}

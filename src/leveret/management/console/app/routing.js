// Where a message goes: the routing of exchanges, computed from their bindings.

/** Returns whether a topic pattern (`*` is one word, `#` any number) matches a routing key. */
export function matchesTopic(pattern, key) {
  const wanted = pattern.split(".");
  const words = key.split(".");
  // reached[i]: whether the pattern so far matches the first i words.
  let reached = Array.from({ length: words.length + 1 }, (_, index) => index === 0);
  for (const part of wanted) {
    const next = reached.map(() => false);
    if (part === "#") {
      const first = reached.indexOf(true);
      for (let index = first; first >= 0 && index <= words.length; index += 1) {
        next[index] = true;
      }
    } else {
      for (let index = 0; index < words.length; index += 1) {
        next[index + 1] = reached[index] && (part === "*" || part === words[index]);
      }
    }
    reached = next;
  }
  return reached[words.length];
}

/** Returns whether the arguments of a binding to a headers exchange match the headers of a message. */
export function matchesHeaders(given, headers) {
  const mode = given["x-match"] ?? "all";
  const withPrefix = mode.endsWith("-with-x");
  const entries = Object.entries(given).filter(([name]) => name !== "x-match" && (withPrefix || !name.startsWith("x-")));
  const matches = ([name, value]) => name in headers && (value === null || headers[name] === value);
  return mode.startsWith("any") ? entries.some(matches) : entries.every(matches);
}

function matches(type, binding, key, headers) {
  switch (type) {
    case "fanout":
      return true;
    case "topic":
      return matchesTopic(binding.routing_key, key);
    case "headers":
      return matchesHeaders(binding.arguments, headers);
    default:
      return binding.routing_key === key;
  }
}

const KNOWN = new Set(["direct", "fanout", "topic", "headers"]);

/**
 * Returns where a message that is published to an exchange goes: the names of `queues` and `exchanges`, the `bindings` that
 * match, and whether it is `uncertain` because an exchange of another type decides.
 */
export function routed(exchange, key, headers, exchanges, bindings) {
  const byName = new Map(exchanges.map((item) => [item.name, item]));
  const bySource = Map.groupBy(bindings, (binding) => binding.source);
  const found = { queues: [], exchanges: [], bindings: [], uncertain: false };
  const queues = new Set();
  const seen = new Set();
  const waiting = [exchange];
  while (waiting.length) {
    const name = waiting.pop();
    if (seen.has(name)) {
      continue;
    }
    seen.add(name);
    const { type = "direct", arguments: options = {} } = byName.get(name) ?? {};
    const all = bySource.get(name) ?? [];
    found.uncertain ||= !KNOWN.has(type) && all.length > 0;
    const matching = KNOWN.has(type) ? all.filter((binding) => matches(type, binding, key, headers)) : all;
    for (const binding of matching) {
      found.bindings.push(binding);
      if (binding.destination_type === "queue") {
        queues.add(binding.destination);
      } else {
        waiting.push(binding.destination);
      }
    }
    if (matching.length === 0 && options["alternate-exchange"] !== undefined) {
      waiting.push(options["alternate-exchange"]);
    }
  }
  found.queues = [...queues].sort();
  found.exchanges = [...seen];
  return found;
}

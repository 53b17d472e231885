// Objects as commands and code that declare them on another broker. Clients choose names: each text is quoted for its language.

import { path } from "./api.js";
import { exchangePath } from "./format.js";

// Control characters, and those that change how a text is shown: a terminal could take them for commands or hide them.
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/u;
const EACH_INVISIBLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;
const PLAIN_WORD = /^[\w@%+:,./-][\w@%+:,./=-]*$/;
const PASSWORD = "PASSWORD";
const PROPERTIES = [
  "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration", "message_id",
  "timestamp", "type", "user_id", "app_id", "cluster_id",
];

const hex = (value, digits) => value.toString(16).padStart(digits, "0");

/** Returns a text as one word of Bash or Zsh, on one line. Throws `Error` if it has a NUL. */
export function shellWord(text) {
  if (text.includes("\0")) {
    throw new Error("a name has the character NUL, which a command cannot contain");
  }
  if (!INVISIBLE.test(text)) {
    return PLAIN_WORD.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
  }
  const escaped = text
    .replace(/[\\']/g, "\\$&")
    .replace(EACH_INVISIBLE, (character) => Array.from(new TextEncoder().encode(character), (byte) => `\\${byte.toString(8).padStart(3, "0")}`).join(""));
  return `$'${escaped}'`; // an octal escape has at most three digits, in every shell
}

/** Returns a value as JSON without invisible characters. */
export const jsonText = (value) =>
  JSON.stringify(value).replace(EACH_INVISIBLE, (character) =>
    Array.from({ length: character.length }, (_, index) => `\\u${hex(character.charCodeAt(index), 4)}`).join(""),
  );

const codePoint = (character, long) => {
  const value = character.codePointAt(0);
  return value > 0xffff ? `\\U${hex(value, 8)}` : long(value);
};

/** Returns a value as a literal of Python. */
export function pythonLiteral(value) {
  if (value === null || value === undefined) {
    return "None";
  }
  if (Array.isArray(value)) {
    return `[${value.map(pythonLiteral).join(", ")}]`;
  }
  switch (typeof value) {
    case "boolean":
      return value ? "True" : "False";
    case "object":
      return `{${Object.entries(value).map(([key, item]) => `${pythonLiteral(key)}: ${pythonLiteral(item)}`).join(", ")}}`;
    case "string":
      return JSON.stringify(value).replace(EACH_INVISIBLE, (character) => codePoint(character, (code) => `\\u${hex(code, 4)}`));
    default:
      return String(value);
  }
}

/** Returns a value as an expression of Terraform. */
export function terraformExpression(value) {
  if (value === null || value === undefined) {
    return "null";
  }
  if (Array.isArray(value)) {
    return `[${value.map(terraformExpression).join(", ")}]`;
  }
  switch (typeof value) {
    case "object":
      return `{${Object.entries(value).map(([key, item]) => ` ${terraformExpression(key)} = ${terraformExpression(item)}`).join(",")} }`;
    case "string": {
      const text = value.replace(/[\\"]/g, "\\$&").replace(/[$%]\{/g, (mark) => mark[0] + mark).replaceAll("\n", "\\n");
      return `"${text.toWellFormed().replace(EACH_INVISIBLE, (character) => codePoint(character, (code) => `\\u${hex(code, 4)}`))}"`;
    }
    default:
      return String(value);
  }
}

const command = (...words) => words.flat(2).filter((word) => word !== "").map(shellWord).join(" ");
const when = (condition, ...words) => (condition ? words : []);
const isEmpty = (object) => Object.keys(object ?? {}).length === 0;

/** The addresses of the broker in commands and code; the user replaces `PASSWORD`. */
class Target {
  constructor({ api, amqpHost, amqpPort, user }) {
    this.api = api;
    this.user = user;
    this.amqp = `${encodeURIComponent(user)}:${PASSWORD}@${amqpHost}:${amqpPort}`;
  }

  curl(method, place, body) {
    const url = new URL(this.api);
    return command("curl", "-u", this.user, "-X", method, `${url.origin}${url.pathname}${place.slice(1)}`, "-H", "content-type: application/json", "--data-raw", jsonText(body));
  }

  admin(vhost, ...words) {
    const { protocol, hostname, port } = new URL(this.api);
    const address = [`--host=${hostname}`, `--port=${port || (protocol === "https:" ? 443 : 80)}`, ...when(protocol === "https:", "--use-tls")];
    return command("rabbitmqadmin", address, `--username=${this.user}`, `--password=${PASSWORD}`, when(vhost !== null, `--vhost=${vhost}`), words);
  }

  cli(...words) {
    const { protocol, host, pathname } = new URL(this.api);
    const prefix = pathname.replace(/\/api\/$/, "");
    return `export LEVERET_URL=${shellWord(`${protocol}//${encodeURIComponent(this.user)}:${PASSWORD}@${host}${prefix}`)}\n${command("leveret", words)}`;
  }

  client(vhost, ...words) {
    return `export LEVERET_URL=${shellWord(this.url(vhost))}\n${command("leveret", words)}`;
  }

  url(vhost) {
    return `amqp://${this.amqp}/${encodeURIComponent(vhost)}`;
  }

  leveret(vhost, ...lines) {
    return ["from leveret import sync", "", `with sync.connect(${pythonLiteral(this.url(vhost))}) as connection:`, "    channel = connection.channel()", ...lines.map((line) => `    ${line}`)].join("\n");
  }

  pika(vhost, ...lines) {
    return ["import pika", "", `parameters = pika.URLParameters(${pythonLiteral(this.url(vhost))})`, "with pika.BlockingConnection(parameters) as connection:", "    channel = connection.channel()", ...lines.map((line) => `    ${line}`)].join("\n");
  }
}

/** Returns a block of Terraform. `settings` is a nested block with its name. */
function resource(type, name, fields, nested = null) {
  const label = `${/^[A-Za-z]/.test(name) ? "" : "_"}${name.replace(/[^A-Za-z0-9_-]/g, "_").slice(0, 60)}`;
  const lines = (items, indent) => Object.entries(items).map(([key, value]) => `${indent}${key} = ${typeof value === "function" ? value() : terraformExpression(value)}`);
  const block = nested ? ["", `  ${nested.name} {`, ...lines(nested.fields, "    "), "  }"] : [];
  return [`resource "rabbitmq_${type}" "${label}" {`, ...lines(fields, "  "), ...block, "}"].join("\n");
}

const encodedJson = (value) => () => `jsonencode(${terraformExpression(value)})`;
const argumentOptions = (given) => Object.entries(given).map(([name, value]) => `--argument=${name}=${jsonText(value)}`);
const call = (name, parts) => `${name}(${parts.filter(Boolean).join(", ")})`;
const named = (name, value, omitted = undefined) => (value === omitted || (name === "arguments" && isEmpty(value)) ? "" : `${name}=${pythonLiteral(value)}`);
const vhostOption = (vhost) => when(vhost !== "/", `--vhost=${vhost}`);

function ofQueue(target, { vhost, name, durable, auto_delete, arguments: given }) {
  const body = { durable, auto_delete, arguments: given };
  const options = [named("durable", durable, false), named("auto_delete", auto_delete, false), named("arguments", given)];
  return {
    curl: () => target.curl("PUT", path("queues", vhost, name), body),
    rabbitmqadmin: () => target.admin(vhost, "queues", "declare", `--name=${name}`, `--durable=${durable}`, `--auto-delete=${auto_delete}`, `--arguments=${jsonText(given)}`),
    terraform: () => resource("queue", name, { name, vhost }, { name: "settings", fields: { durable, auto_delete, ...(isEmpty(given) ? {} : { arguments_json: encodedJson(given) }) } }),
    leveret: () => target.cli("queues", "add", vhostOption(vhost), when(!durable, "--transient"), when(auto_delete, "--auto-delete"), argumentOptions(given), "--", name),
    python: () => target.leveret(vhost, call("channel.declare_queue", [pythonLiteral(name), ...options])),
    pika: () => target.pika(vhost, call("channel.queue_declare", [pythonLiteral(name), ...options])),
  };
}

function ofExchange(target, { vhost, name, type, durable, auto_delete, internal, arguments: given }) {
  const options = [named("durable", durable, false), named("auto_delete", auto_delete, false), named("internal", internal, false), named("arguments", given)];
  const unsupported = internal ? "# The command has no option for internal exchanges.\n" : "";
  return {
    curl: () => target.curl("PUT", path("exchanges", vhost, name), { type, durable, auto_delete, internal, arguments: given }),
    rabbitmqadmin: () =>
      unsupported + target.admin(vhost, "exchanges", "declare", `--name=${name}`, `--type=${type}`, `--durable=${durable}`, `--auto-delete=${auto_delete}`, `--arguments=${jsonText(given)}`),
    terraform: () =>
      (internal ? "# The provider has no setting for internal exchanges.\n" : "") +
      resource("exchange", name, { name, vhost }, { name: "settings", fields: { type, durable, auto_delete, ...(isEmpty(given) ? {} : { arguments: given }) } }),
    leveret: () => target.cli("exchanges", "add", vhostOption(vhost), `--type=${type}`, when(!durable, "--transient"), when(auto_delete, "--auto-delete"), when(internal, "--internal"), argumentOptions(given), "--", name),
    python: () => target.leveret(vhost, call("channel.declare_exchange", [pythonLiteral(name), pythonLiteral(type), ...options])),
    pika: () => target.pika(vhost, call("channel.exchange_declare", [pythonLiteral(name), pythonLiteral(type), ...options])),
  };
}

function ofBinding(target, { vhost, source, destination, destination_type: kind, routing_key: key, arguments: given }) {
  const isQueue = kind === "queue";
  const parts = [pythonLiteral(destination), pythonLiteral(source), pythonLiteral(key), isEmpty(given) ? "" : `arguments=${pythonLiteral(given)}`];
  return {
    curl: () => target.curl("POST", path("bindings", vhost, "e", exchangePath(source), isQueue ? "q" : "e", destination), { routing_key: key, arguments: given }),
    rabbitmqadmin: () =>
      target.admin(vhost, "bindings", "declare", `--source=${source}`, `--destination-type=${kind}`, `--destination=${destination}`, `--routing-key=${key}`, `--arguments=${jsonText(given)}`),
    terraform: () =>
      resource("binding", `${source}-${destination}`, { source, vhost, destination, destination_type: kind, routing_key: key, ...(isEmpty(given) ? {} : { arguments_json: encodedJson(given) }) }),
    leveret: () => target.cli("bindings", "add", vhostOption(vhost), `--routing-key=${key}`, when(!isQueue, "--to-exchange"), argumentOptions(given), "--", source, destination),
    python: () => target.leveret(vhost, call(isQueue ? "channel.bind_queue" : "channel.bind_exchange", parts)),
    pika: () => target.pika(vhost, call(isQueue ? "channel.queue_bind" : "channel.exchange_bind", parts)),
  };
}

const ofPolicy = (collection) => (target, { vhost, name, pattern, "apply-to": applyTo, priority, definition }) => {
  const isOperator = collection === "operator-policies";
  return {
    curl: () => target.curl("PUT", path(collection, vhost, name), { pattern, "apply-to": applyTo, priority, definition }),
    rabbitmqadmin: () =>
      target.admin(vhost, isOperator ? "operator_policies" : "policies", "declare", `--name=${name}`, `--pattern=${pattern}`, `--apply-to=${applyTo}`, `--priority=${priority}`, `--definition=${jsonText(definition)}`),
    terraform: () => resource(isOperator ? "operator_policy" : "policy", name, { name, vhost }, { name: "policy", fields: { pattern, priority, apply_to: applyTo, definition } }),
    leveret: () => target.cli(collection, "set", vhostOption(vhost), `--apply-to=${applyTo}`, `--priority=${priority}`, "--", name, pattern, jsonText(definition)),
  };
};

function ofUser(target, { name, tags }) {
  return {
    curl: () => target.curl("PUT", path("users", name), { password: PASSWORD, tags }),
    rabbitmqadmin: () => target.admin(null, "users", "declare", `--name=${name}`, `--password=${PASSWORD}`, `--tags=${tags.join(",")}`),
    terraform: () => resource("user", name, { name, password: PASSWORD, tags }),
    leveret: () => target.cli("users", "add", tags.map((tag) => `--tag=${tag}`), "--", name),
  };
}

function ofMessage(target, { vhost, exchange, routing_key: key, payload, payload_encoding: encoding, properties: given }) {
  const properties = Object.fromEntries(PROPERTIES.filter((name) => given[name] !== undefined).map((name) => [name, given[name]]));
  const isBinary = encoding === "base64";
  const body = isBinary ? `base64.b64decode(${pythonLiteral(payload)})` : pythonLiteral(payload);
  const options = Object.entries(properties).map(([name, value]) => `${name}=${pythonLiteral(value)}`);
  const { headers, expiration, ...rest } = properties;
  const line = { exchange, routing_key: key, properties: { ...rest, ...(expiration === undefined ? {} : { expiration: Number(expiration) }) }, ...(headers ? { headers } : {}), body: payload, encoding: isBinary ? "base64" : "text" };
  const imports = isBinary ? "import base64\n" : "";
  return {
    curl: () => target.curl("POST", `${path("exchanges", vhost, exchangePath(exchange))}/publish`, { routing_key: key, payload, payload_encoding: encoding, properties }),
    rabbitmqadmin: () => {
      if (isBinary) {
        throw new Error("rabbitmqadmin takes no binary payload as an argument; use curl");
      }
      return target.admin(vhost, "publish", "message", `--exchange=${exchange}`, `--routing-key=${key}`, `--payload=${payload}`, `--properties=${jsonText(properties)}`);
    },
    leveret: () => `export LEVERET_URL=${shellWord(target.url(vhost))}\n${command("printf", "%s\\n", jsonText(line))} | ${command("leveret", "publish", "--format", "json")}`,
    python: () => imports + target.leveret(vhost, call("channel.publish", [body, pythonLiteral(key), pythonLiteral(exchange), ...options])),
    pika: () => imports + target.pika(vhost, call("channel.basic_publish", [pythonLiteral(exchange), pythonLiteral(key), body, options.length ? `pika.BasicProperties(${options.join(", ")})` : ""])),
  };
}

const SETTLE = { ack: "message.ack()", reject: "message.reject()", requeue: "message.nack()" };

/** Messages that are taken from a queue, and their `outcome`: "ack", "reject" or "requeue". */
const ofGet = (target, { vhost, queue, count, outcome }) => ({
  leveret: () => target.client(vhost, "get", `--count=${count}`, `--${outcome}`, "--", queue),
  python: () => target.leveret(vhost, `for _ in range(${count}):`, `    message = channel.get(${pythonLiteral(queue)})`, "    print(message.text(), message.redelivered)", `    ${SETTLE[outcome]}`),
});

/** Messages of a queue that are looked at where they are; of a stream, from an offset on. */
const ofBrowse = (target, { vhost, queue, offset, count, stream }) => ({
  leveret: () => target.cli("messages", "browse", vhostOption(vhost), `--offset=${offset}`, `--count=${count}`, "--", queue),
  python: () =>
    stream
      ? target.leveret(
          vhost,
          `with channel.consume(${pythonLiteral(queue)}, arguments={"x-stream-offset": ${offset}}) as messages:`,
          `    for _, message in zip(range(${count}), messages):`,
          '        print(message.headers["x-stream-offset"], message.text())',
          "        message.ack()",
        )
      : target.leveret(vhost, `message = channel.get(${pythonLiteral(queue)})`, "print(message.text())", "message.nack()  # AMQP 0-9-1 cannot look: this marks the message as redelivered"),
});

/** A worker that takes messages until it is stopped. */
const ofWorker = (target, { vhost, queue, prefetch }) => ({
  leveret: () => target.client(vhost, "consume", `--prefetch=${prefetch}`, "--requeue", "--", queue),
  python: () =>
    target.leveret(
      vhost,
      `with channel.consume(${pythonLiteral(queue)}, prefetch=${prefetch}) as messages:`,
      "    for message in messages:",
      "        print(message.text())",
      '        input("Enter acknowledges the message, Ctrl-C ends the worker ")',
      "        message.ack()",
    ),
});

/** Several objects in one program: `steps` are pairs of a kind and an object. */
function ofProgram(target, { vhost, steps }) {
  const inner = Object.create(target, { leveret: { value: (_, ...lines) => lines.join("\n") } });
  const texts = (form) => steps.map(([kind, object]) => KINDS[kind](form === "python" ? inner : target, { vhost, ...object })[form]());
  return {
    leveret() {
      const lines = texts("leveret").join("\n").split("\n");
      const isRepeated = (line, index) => line.startsWith("export ") && line === lines.slice(0, index).findLast((other) => other.startsWith("export "));
      return lines.filter((line, index) => !isRepeated(line, index)).join("\n");
    },
    python: () => target.leveret(vhost, ...texts("python").join("\n").split("\n")),
  };
}

const KINDS = {
  get: ofGet,
  browse: ofBrowse,
  worker: ofWorker,
  program: ofProgram,
  queue: ofQueue,
  exchange: ofExchange,
  binding: ofBinding,
  policies: ofPolicy("policies"),
  "operator-policies": ofPolicy("operator-policies"),
  user: ofUser,
  message: ofMessage,
};

const TITLES = [
  ["curl", "curl"],
  ["leveret", "leveret"],
  ["rabbitmqadmin", "rabbitmqadmin 2"],
  ["terraform", "Terraform"],
  ["python", "Python (leveret)"],
  ["pika", "Python (pika)"],
];

/**
 * Returns the forms of an object: `[[id, title, text()], ...]`. `text` throws `Error` if the form cannot express the object.
 *
 * Args:
 *   kind: "queue", "exchange", "binding", "policies", "operator-policies", "user" or "message"; "get", "browse" or "worker" for a
 *     client of a queue; "program" for several of them.
 *   object: The object, with the keys of the API.
 *   address: `{api, amqpHost, amqpPort, user}`.
 */
export function copies(kind, object, address) {
  const forms = KINDS[kind](new Target(address), object);
  return TITLES.filter(([id]) => forms[id]).map(([id, title]) => [id, title, forms[id]]);
}

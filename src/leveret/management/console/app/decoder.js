// A worker that decodes payloads of any origin. `decoding.js` ends it if a payload takes too long.
//
// Values become rows `{index, depth, name, type, value, end}` in their order; `end` is the index behind the last row inside a value.

import { Decoder } from "../vendor/msgpack/Decoder.mjs";
import { DecodeError } from "../vendor/msgpack/DecodeError.mjs";
import { ExtData } from "../vendor/msgpack/ExtData.mjs";
import { decode as decodeCbor } from "../vendor/cborg/decode.js";
import { Decompress } from "../vendor/fzstd.js";

const MAX_ROWS = 5000;
const MAX_DEPTH = 64;
// Characters of a text and bytes of a binary value that are shown.
const MAX_TEXT = 500;
const MAX_BINARY = 64;
// Bytes of decompressed data.
const MAX_DECOMPRESSED = 16 << 20;
// Characters of an integer that is shown exactly.
const MAX_DIGITS = 400;

/** A value of CBOR with a tag. */
class Tagged {
  constructor(tag, value) {
    this.tag = tag;
    this.value = value;
  }
}

/** A decoder of MessagePack that allocates no more than a payload has values. */
class BoundedDecoder extends Decoder {
  constructor(size) {
    super({ useBigInt64: true, mapKeyConverter: (key) => (typeof key === "number" || typeof key === "string" ? key : textOf(key)) });
    this.left = size;
  }

  pushArrayState(size) {
    this.left -= size;
    if (this.left < 0) {
      throw new DecodeError("the arrays have more values than the payload has bytes");
    }
    super.pushArrayState(size);
  }
}

const tags = new Proxy({}, { get: (_, tag) => (decode) => new Tagged(tag, decode()) });

/** Returns an integer that a number cannot hold as it is in the text. */
const exact = (_, value, context) =>
  typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "") && context.source.length <= MAX_DIGITS
    ? BigInt(context.source)
    : value;

function parseJson(data) {
  const text = new TextDecoder("utf-8", { fatal: true }).decode(data);
  try {
    return JSON.parse(text, exact);
  } catch (error) {
    if (error instanceof RangeError) {
      return JSON.parse(text); // nested too deeply for a function that sees each value
    }
    throw error;
  }
}

const FORMATS = {
  json: parseJson,
  msgpack: (data) => new BoundedDecoder(data.length).decode(data),
  cbor: (data) => decodeCbor(data, { useMaps: true, tags }),
};

const hex = (data) => Array.from(data.subarray(0, MAX_BINARY), (byte) => byte.toString(16).padStart(2, "0")).join(" ");
const binary = (data) => `${hex(data)}${data.length > MAX_BINARY ? ` … ${data.length} bytes` : ""}`;
const values = (count) => `${count} ${count === 1 ? "value" : "values"}`;

/** Returns the type of a value, its text, and the names and values inside it. */
function describe(value) {
  if (value === null || value === undefined) {
    return [String(value), "", []];
  }
  switch (typeof value) {
    case "string":
      return ["string", value.length > MAX_TEXT ? `${value.slice(0, MAX_TEXT)}… ${value.length} characters` : value, []];
    case "bigint":
      return ["integer", String(value), []];
    case "object":
      break;
    default:
      return [typeof value, Object.is(value, -0) ? "-0" : String(value), []];
  }
  if (Array.isArray(value)) {
    return ["array", values(value.length), value.entries()];
  }
  if (value instanceof Map) {
    return ["map", values(value.size), value.entries()];
  }
  if (value instanceof Uint8Array) {
    return ["binary", binary(value), []];
  }
  if (value instanceof Date) {
    return ["timestamp", Number.isNaN(value.getTime()) ? "out of range" : value.toISOString(), []];
  }
  if (value instanceof ExtData) {
    return [`extension ${value.type}`, binary(value.data), []];
  }
  if (value instanceof Tagged) {
    return [`tag ${value.tag}`, "", [["", value.value]]];
  }
  const entries = Object.entries(value);
  return ["object", values(entries.length), entries];
}

/** Returns a key of a map as text. */
function textOf(key) {
  const [type, text] = describe(key);
  return typeof key === "string" ? text : text || type;
}

function rowsOf(root) {
  const rows = [];
  const add = (depth, name, type, value) => {
    const row = { index: rows.length, depth, name, type, value, end: rows.length + 1 };
    rows.push(row);
    return row;
  };
  function visit(name, value, depth) {
    const [type, text, inside] = describe(value);
    const row = add(depth, name, type, text);
    for (const [key, item] of inside) {
      if (rows.length >= MAX_ROWS) {
        break;
      }
      if (depth === MAX_DEPTH) {
        add(depth + 1, "", "…", "deeper values are not shown");
        break;
      }
      visit(textOf(key), item, depth + 1);
    }
    row.end = rows.length;
  }
  visit("", root, 0);
  if (rows.length >= MAX_ROWS) {
    add(0, "", "…", `the first ${MAX_ROWS} values are shown`);
  }
  return rows;
}

function decompress(data) {
  const chunks = [];
  let size = 0;
  const stream = new Decompress((chunk) => {
    size += chunk.length;
    if (size > MAX_DECOMPRESSED) {
      throw new Error(`it expands to over ${MAX_DECOMPRESSED >> 20} MiB`);
    }
    chunks.push(chunk);
  });
  stream.push(data, true);
  const whole = new Uint8Array(size);
  let at = 0;
  for (const chunk of chunks) {
    whole.set(chunk, at);
    at += chunk.length;
  }
  return whole;
}

addEventListener("message", ({ data: { format, data } }) => {
  try {
    postMessage({ result: format === "zstd" ? decompress(data) : rowsOf(FORMATS[format](data)) });
  } catch (error) {
    postMessage({ error: error instanceof RangeError ? "it is damaged or nested too deeply" : error.message });
  }
});

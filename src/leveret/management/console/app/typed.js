// Values with their AMQP types, decoded from messages as their publishers have encoded them.
//
// Decoders return rows `{index, depth, name, type, value}`; a table, list or map precedes the rows of its values. What cannot be decoded
// becomes a row, too, so that a damaged message shows all that is before the damage.

// Rows of a message, and levels of nested values.
const MAX_ROWS = 5000;
const MAX_DEPTH = 64;
// Bytes of a binary value that are shown.
const MAX_SHOWN = 256;

class Damaged extends Error {}

class Reader {
  constructor(data) {
    this.data = data;
    this.view = new DataView(data.buffer, data.byteOffset, data.byteLength);
    this.at = 0;
    this.end = data.length;
    this.rows = [];
  }

  /** Returns where the next bytes begin, and moves behind them. */
  take(count) {
    if (count < 0 || this.at + count > this.end) {
      throw new Damaged("the rest is not shown: the bytes end here");
    }
    const begin = this.at;
    this.at += count;
    return begin;
  }

  bytes(count) {
    const begin = this.take(count);
    return this.data.subarray(begin, begin + count);
  }

  text(count) {
    return new TextDecoder().decode(this.bytes(count));
  }

  u8() {
    return this.view.getUint8(this.take(1));
  }

  u16() {
    return this.view.getUint16(this.take(2));
  }

  u32() {
    return this.view.getUint32(this.take(4));
  }

  u64() {
    return this.view.getBigUint64(this.take(8));
  }

  i64() {
    return this.view.getBigInt64(this.take(8));
  }

  add(depth, name, type, value) {
    if (this.rows.length >= MAX_ROWS) {
      throw new Damaged(`more than ${MAX_ROWS} values`);
    }
    if (depth > MAX_DEPTH) {
      throw new Damaged(`more than ${MAX_DEPTH} levels`);
    }
    this.push(depth, name, type, String(value));
  }

  push(depth, name, type, value) {
    this.rows.push({ index: this.rows.length, depth, name, type, value });
  }

  /** Reads values up to an end. */
  within(size, read) {
    const outer = this.end;
    const end = this.take(size) + size;
    this.at = end - size;
    this.end = end;
    read();
    this.at = end;
    this.end = outer;
  }

  /** Returns the rows that `read` adds. */
  decode(read) {
    try {
      read();
    } catch (error) {
      if (!(error instanceof Damaged || error instanceof RangeError)) {
        throw error;
      }
      this.push(0, "…", "", error.message);
    }
    return this.rows;
  }
}

const hex = (data) =>
  [...data.subarray(0, MAX_SHOWN)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ") + (data.length > MAX_SHOWN ? " …" : "");

function iso(milliseconds) {
  const date = new Date(Number(milliseconds));
  return Number.isNaN(date.getTime()) ? String(milliseconds) : date.toISOString();
}

// AMQP 0-9-1 and 0-9

const BASIC = 60;
const BASIC_PROPERTIES = [
  ["content-type", "shortstr"],
  ["content-encoding", "shortstr"],
  ["headers", "table"],
  ["delivery-mode", "octet"],
  ["priority", "octet"],
  ["correlation-id", "shortstr"],
  ["reply-to", "shortstr"],
  ["expiration", "shortstr"],
  ["message-id", "shortstr"],
  ["timestamp", "timestamp"],
  ["type", "shortstr"],
  ["user-id", "shortstr"],
  ["app-id", "shortstr"],
  ["cluster-id", "shortstr"],
];

function decimal(reader) {
  const scale = reader.u8();
  const digits = reader.view.getInt32(reader.take(4));
  return scale ? `${digits} × 10^-${scale}` : String(digits);
}

// By tag, in the dialect of RabbitMQ: the type, and the value.
const FIELDS = {
  t: ["boolean", (reader) => reader.u8() !== 0],
  b: ["signed byte", (reader) => reader.view.getInt8(reader.take(1))],
  B: ["byte", (reader) => reader.u8()],
  s: ["signed short", (reader) => reader.view.getInt16(reader.take(2))],
  U: ["signed short", (reader) => reader.view.getInt16(reader.take(2))],
  u: ["unsigned short", (reader) => reader.u16()],
  I: ["signed int", (reader) => reader.view.getInt32(reader.take(4))],
  i: ["unsigned int", (reader) => reader.u32()],
  l: ["signed long", (reader) => reader.i64()],
  L: ["signed long", (reader) => reader.i64()],
  f: ["float", (reader) => reader.view.getFloat32(reader.take(4))],
  d: ["double", (reader) => reader.view.getFloat64(reader.take(8))],
  D: ["decimal", decimal],
  S: ["long string", (reader) => reader.text(reader.u32())],
  x: ["byte array", (reader) => hex(reader.bytes(reader.u32()))],
  T: ["timestamp", (reader) => iso(1000n * reader.u64())],
  V: ["void", () => ""],
};

function addField(reader, depth, name) {
  const tag = String.fromCharCode(reader.u8());
  if (tag === "F") {
    addTable(reader, depth, name);
  } else if (tag === "A") {
    const size = reader.u32();
    reader.add(depth, name, "array (A)", "");
    reader.within(size, () => {
      for (let index = 0; reader.at < reader.end; index += 1) {
        addField(reader, depth + 1, String(index));
      }
    });
  } else if (tag in FIELDS) {
    const [type, read] = FIELDS[tag];
    reader.add(depth, name, `${type} (${tag})`, read(reader));
  } else {
    throw new Damaged(`the field '${name}' has the unknown type '${tag}'`);
  }
}

function addTable(reader, depth, name) {
  const size = reader.u32();
  reader.add(depth, name, "table (F)", "");
  reader.within(size, () => {
    while (reader.at < reader.end) {
      addField(reader, depth + 1, reader.text(reader.u8()));
    }
  });
}

/** Returns the rows of a content header. */
function contentHeader(data) {
  const reader = new Reader(data);
  return reader.decode(() => {
    const kind = reader.u16();
    reader.take(2);
    reader.add(0, "class", "short", kind === BASIC ? "60 (basic)" : kind);
    reader.add(0, "body size", "longlong", reader.u64());
    if (kind !== BASIC) {
      reader.add(0, "properties", "bytes", hex(data.subarray(reader.at)));
      return;
    }
    const flags = reader.u16();
    for (const [index, [name, type]] of BASIC_PROPERTIES.entries()) {
      if (!(flags & (0x8000 >> index))) {
        continue;
      }
      if (type === "table") {
        addTable(reader, 0, name);
      } else {
        reader.add(0, name, type, type === "shortstr" ? reader.text(reader.u8()) : type === "octet" ? reader.u8() : iso(1000n * reader.u64()));
      }
    }
  });
}

// AMQP 1.0

const SECTIONS = {
  0x70: ["header", ["durable", "priority", "ttl", "first-acquirer", "delivery-count"]],
  0x71: ["delivery-annotations"],
  0x72: ["message-annotations"],
  0x73: [
    "properties",
    [
      "message-id", "user-id", "to", "subject", "reply-to", "correlation-id", "content-type", "content-encoding",
      "absolute-expiry-time", "creation-time", "group-id", "group-sequence", "reply-to-group-id",
    ],
  ],
  0x74: ["application-properties"],
  0x75: ["data"],
  0x76: ["amqp-sequence"],
  0x77: ["amqp-value"],
  0x78: ["footer"],
};

const uuid = (reader) => hex(reader.bytes(16)).replaceAll(" ", "").replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");

// By format code: the type, and the value.
const PRIMITIVES = {
  0x40: ["null", () => ""],
  0x41: ["boolean", () => true],
  0x42: ["boolean", () => false],
  0x43: ["uint", () => 0],
  0x44: ["ulong", () => 0],
  0x50: ["ubyte", (reader) => reader.u8()],
  0x51: ["byte", (reader) => reader.view.getInt8(reader.take(1))],
  0x52: ["uint", (reader) => reader.u8()],
  0x53: ["ulong", (reader) => reader.u8()],
  0x54: ["int", (reader) => reader.view.getInt8(reader.take(1))],
  0x55: ["long", (reader) => reader.view.getInt8(reader.take(1))],
  0x56: ["boolean", (reader) => reader.u8() !== 0],
  0x60: ["ushort", (reader) => reader.u16()],
  0x61: ["short", (reader) => reader.view.getInt16(reader.take(2))],
  0x70: ["uint", (reader) => reader.u32()],
  0x71: ["int", (reader) => reader.view.getInt32(reader.take(4))],
  0x72: ["float", (reader) => reader.view.getFloat32(reader.take(4))],
  0x73: ["char", (reader) => character(reader.u32())],
  0x74: ["decimal32", (reader) => hex(reader.bytes(4))],
  0x80: ["ulong", (reader) => reader.u64()],
  0x81: ["long", (reader) => reader.i64()],
  0x82: ["double", (reader) => reader.view.getFloat64(reader.take(8))],
  0x83: ["timestamp", (reader) => iso(reader.i64())],
  0x84: ["decimal64", (reader) => hex(reader.bytes(8))],
  0x94: ["decimal128", (reader) => hex(reader.bytes(16))],
  0x98: ["uuid", uuid],
  0xa0: ["binary", (reader) => hex(reader.bytes(reader.u8()))],
  0xa1: ["string", (reader) => reader.text(reader.u8())],
  0xa3: ["symbol", (reader) => reader.text(reader.u8())],
  0xb0: ["binary", (reader) => hex(reader.bytes(reader.u32()))],
  0xb1: ["string", (reader) => reader.text(reader.u32())],
  0xb3: ["symbol", (reader) => reader.text(reader.u32())],
};
const COMPOUNDS = { 0xc0: "list", 0xc1: "map", 0xd0: "list", 0xd1: "map", 0xe0: "array", 0xf0: "array" };
const EMPTY_LIST = 0x45;
const DESCRIBED = 0;

const character = (code) => (code <= 0x10ffff ? String.fromCodePoint(code) : code);

/** Reads a simple value that names another one: a key or a descriptor. */
function simple(reader) {
  const code = reader.u8();
  if (!(code in PRIMITIVES)) {
    throw new Damaged("a key or descriptor is not a simple value");
  }
  return PRIMITIVES[code][1](reader);
}

/** Adds a value; `code` is its constructor if that was read, `names` name the fields of a list. */
function addValue(reader, depth, name, code = reader.u8(), names = []) {
  if (code === DESCRIBED) {
    const descriptor = simple(reader);
    reader.add(depth, name, "described", descriptor);
    addValue(reader, depth + 1, "value");
  } else if (code in PRIMITIVES) {
    const [type, read] = PRIMITIVES[code];
    reader.add(depth, name, type, read(reader));
  } else if (code === EMPTY_LIST) {
    reader.add(depth, name, "list", "empty");
  } else if (code in COMPOUNDS) {
    addCompound(reader, depth, name, COMPOUNDS[code], code & 0x10 ? 4 : 1, names);
  } else {
    throw new Damaged(`a value has the unknown format code 0x${code.toString(16)}`);
  }
}

function addCompound(reader, depth, name, type, width, names) {
  const number = () => (width === 1 ? reader.u8() : reader.u32());
  const size = number();
  reader.within(size, () => {
    const count = number();
    reader.add(depth, name, type, type === "map" ? "" : `${count} ${count === 1 ? "value" : "values"}`);
    const constructor = type === "array" && count > 0 ? reader.u8() : undefined;
    if (constructor === DESCRIBED) {
      throw new Damaged("an array of described values");
    }
    for (let index = 0; index < count; index += type === "map" ? 2 : 1) {
      const key = type === "map" ? String(simple(reader)) : (names[index] ?? String(index));
      const before = reader.rows.length;
      addValue(reader, depth + 1, key, constructor);
      if (names.length && reader.rows[before]?.type === "null") {
        reader.rows.pop(); // a field without a value
      }
    }
  });
}

/** Returns the rows of the sections of a message. */
function sections(data) {
  const reader = new Reader(data);
  return reader.decode(() => {
    while (reader.at < reader.end) {
      if (reader.u8() !== DESCRIBED) {
        throw new Damaged("expected a section");
      }
      const descriptor = Number(simple(reader));
      const [name, names] = SECTIONS[descriptor] ?? [`0x${descriptor.toString(16)}`];
      addValue(reader, 0, name, reader.u8(), names);
    }
  });
}

/** Returns the rows of a message, whose `encoded` bytes the API has returned. */
export function typedRows({ protocol, encoded }) {
  const data = Uint8Array.from(atob(encoded), (character) => character.charCodeAt(0));
  return protocol === "1.0" ? sections(data) : contentHeader(data);
}

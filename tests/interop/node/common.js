'use strict';

// Shared helpers: the broker's URL, unique names, waiting.

const url = process.env.LEVERET_URL;
let numbers = 0;

const unique = (what) => `node.${process.pid}.${what}.${(numbers += 1)}`;
const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

async function until(condition, what = 'the condition', within = 20000) {
  const deadline = Date.now() + within;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (Date.now() > deadline) throw new Error(`${what} did not come true within ${within} ms`);
    await sleep(20);
  }
}

// Return the next message of a queue, or fail.
const take = (channel, queue, options) => until(() => channel.get(queue, options), `a message in ${queue}`);

// Resolve with the error that an emitter emits.
const failure = (emitter) => new Promise((resolve) => emitter.once('error', resolve));

module.exports = { url, unique, sleep, until, take, failure };

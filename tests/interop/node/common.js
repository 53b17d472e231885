'use strict';

// What the tests share: the broker's URL, names that nobody else uses, waiting.

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

// The next message of a queue, or a failure.
const take = (channel, queue, options) => until(() => channel.get(queue, options), `a message in ${queue}`);

// Resolves with the error that an emitter gets.
const failure = (emitter) => new Promise((resolve) => emitter.once('error', resolve));

module.exports = { url, unique, sleep, until, take, failure };

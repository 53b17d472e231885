'use strict';
// Process orders until SIGTERM. Connects again after a lost connection.

const { setTimeout: sleep } = require('node:timers/promises');
const { amqp, URL, QUEUE, declare } = require('./orders');

const PREFETCH = 10;
const MAX_PAUSE = 5000;
let stopping = null;
let working = 0;

async function handle(order) {
  if (order.amount <= 0) throw new Error(`amount ${order.amount}`);
}

async function consume(connection) {
  const channel = await connection.createChannel();
  await declare(channel);
  await channel.prefetch(PREFETCH);
  const { consumerTag } = await channel.consume(QUEUE, async (message) => {
    // Null: the broker has cancelled the consumer, because the queue was deleted.
    if (message === null) return connection.close();
    working += 1;
    try {
      const order = JSON.parse(message.content);
      await handle(order);
      channel.ack(message);
      console.log(`order ${order.id} done`);
    } catch (error) {
      console.log(`order failed: ${error.message}`);
      // Back to the queue, until its delivery limit.
      channel.nack(message);
    } finally {
      working -= 1;
    }
  });
  stopping = async () => {
    await channel.cancel(consumerTag);
    while (working) await sleep(10);
    await channel.close();
    await connection.close();
  };
  console.log('ready');
}

async function main() {
  let ended = false;
  process.once('SIGTERM', async () => {
    ended = true;
    if (stopping) await stopping();
  });
  for (let pause = 100; !ended; pause = Math.min(2 * pause, MAX_PAUSE)) {
    try {
      const connection = await amqp.connect(`${URL}?heartbeat=30`);
      // An error is followed by `close`.
      connection.on('error', (error) => console.log(`connection lost: ${error.message}`));
      const closed = new Promise((resolve) => connection.once('close', resolve));
      await consume(connection);
      pause = 100;
      await closed;
    } catch (error) {
      console.log(`cannot connect: ${error.message}`);
    }
    stopping = null;
    if (!ended) await sleep(pause);
  }
}

main();

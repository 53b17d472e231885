'use strict';
// The topology that publishers and workers share, and a function that places orders.

const amqp = require('amqplib');

const URL = process.env.AMQP_URL || 'amqp://guest:guest@localhost:5672';
const EXCHANGE = 'node-orders';
const QUEUE = 'node-orders';
const FAILED = 'node-orders-failed';

async function declare(channel) {
  await channel.assertExchange(EXCHANGE, 'topic', { durable: true });
  await channel.assertQueue(FAILED, { durable: true });
  await channel.assertQueue(QUEUE, {
    durable: true,
    // The third failure is the last: a quorum queue counts them, and sends the order to FAILED.
    arguments: {
      'x-queue-type': 'quorum',
      'x-delivery-limit': 2,
      'x-dead-letter-exchange': '',
      'x-dead-letter-routing-key': FAILED,
    },
  });
  await channel.bindQueue(QUEUE, EXCHANGE, 'order.*');
}

// Publish orders; return when all are on disk. Throws if the broker refuses one.
async function place(connection, orders) {
  const channel = await connection.createConfirmChannel();
  await declare(channel);
  let unroutable = 0;
  channel.on('return', () => { unroutable += 1; });
  for (const order of orders) {
    const body = Buffer.from(JSON.stringify(order));
    const options = { persistent: true, mandatory: true, contentType: 'application/json' };
    // False if the connection's buffer is full: wait, so that memory does not grow.
    if (!channel.publish(EXCHANGE, 'order.placed', body, options)) {
      await new Promise((resolve) => channel.once('drain', resolve));
    }
  }
  await channel.waitForConfirms();
  await channel.close();
  if (unroutable) throw new Error(`${unroutable} orders reached no queue`);
}

module.exports = { amqp, URL, EXCHANGE, QUEUE, FAILED, declare, place };

'use strict';

// node bench/websocket.js URL publish|consume BYTES COUNT: prints the seconds that amqp-client.js needs.

globalThis.WebSocket ??= require('ws');
const { AMQPClient, AMQPWebSocketClient } = require('@cloudamqp/amqp-client');

// Unconfirmed messages.
const WINDOW = 1000;
const QUEUE = 'bench';

async function publish(channel, size, count) {
  await channel.confirmSelect();
  const body = new Uint8Array(size);
  for (let left = count; left > 0; left -= WINDOW) {
    const window = Array.from({ length: Math.min(left, WINDOW) }, () => channel.basicPublish('', QUEUE, body));
    await Promise.all(window);
  }
}

async function consume(channel, count) {
  let left = count;
  await new Promise((resolve) => channel.basicConsume(QUEUE, { noAck: true }, () => --left || resolve()));
}

async function main(url, what, size, count) {
  const client = url.startsWith('ws') ? new AMQPWebSocketClient({ url }) : new AMQPClient(url);
  const connection = await client.connect();
  const channel = await connection.channel();
  await channel.queueDeclare(QUEUE, { durable: false });
  const start = performance.now();
  await (what === 'publish' ? publish(channel, size, count) : consume(channel, count));
  console.log((performance.now() - start) / 1000);
  await connection.close();
}

const [url, what, size, count] = process.argv.slice(2);
main(url, what, Number(size), Number(count));

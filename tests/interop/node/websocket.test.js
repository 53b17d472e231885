'use strict';

// amqp-client.js over AMQP 0-9-1 and rhea over AMQP 1.0, both over WebSocket.

const assert = require('node:assert');
const { test } = require('node:test');
const rhea = require('rhea');
const WebSocket = require('ws');

globalThis.WebSocket ??= WebSocket;
const { AMQPWebSocketClient } = require('@cloudamqp/amqp-client');
const { unique, until } = require('./common');

const url = process.env.LEVERET_WEBSOCKET;

async function open(context, vhost = '/') {
  const connection = await new AMQPWebSocketClient(url, vhost, 'guest', 'guest').connect();
  context.after(() => connection.closed || connection.close());
  return connection;
}

const sizes = [0, 1, 100, 8192, 1000000];

test('messages of any size over 0-9-1', async (context) => {
  const channel = await (await open(context)).channel();
  await channel.confirmSelect();
  const { name } = await channel.queueDeclare('', { exclusive: true });
  for (const size of sizes) await channel.basicPublish('', name, 'x'.repeat(size), { deliveryMode: 2 });
  const found = [];
  await channel.basicConsume(name, { noAck: false }, (message) => {
    found.push(message.bodySize);
    message.ack();
  });
  await until(() => found.length === sizes.length, 'all messages');
  assert.deepStrictEqual(found, sizes);
});

test('a channel error over 0-9-1', async (context) => {
  const connection = await open(context);
  const channel = await connection.channel();
  await assert.rejects(channel.queueDeclare(unique('none'), { passive: true }), /404/);
  await connection.close();
});

test('a wrong password over 0-9-1', async () => {
  await assert.rejects(new AMQPWebSocketClient(url, '/', 'guest', 'wrong').connect());
});

test('messages of any size over 1.0', async (context) => {
  const queue = unique('websocket');
  const connection = rhea.create_container().connect({
    connection_details: rhea.websocket_connect(WebSocket)(url, ['binary', 'AMQPWSB10', 'amqp']),
    username: 'guest',
    password: 'guest',
    reconnect: false,
  });
  context.after(() => connection.close());
  const sender = connection.open_sender(queue);
  await new Promise((resolve) => sender.once('sendable', resolve));
  let accepted = 0;
  connection.on('accepted', () => (accepted += 1));
  for (const size of sizes) sender.send({ body: 'x'.repeat(size), durable: true });
  await until(() => accepted === sizes.length, 'accepted for each');
  const found = [];
  connection.on('message', ({ message }) => found.push(message.body.length));
  connection.open_receiver(queue);
  await until(() => found.length === sizes.length, 'all messages');
  assert.deepStrictEqual(found, sizes);
});

test('another subprotocol is refused', async () => {
  const socket = new WebSocket(url, ['mqtt']);
  const error = await new Promise((resolve) => socket.once('error', resolve));
  assert.match(error.message, /400/);
});

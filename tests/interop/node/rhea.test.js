'use strict';

// rhea over AMQP 1.0, in the style of its examples.

const assert = require('node:assert');
const { test } = require('node:test');
const rhea = require('rhea');
const { url, unique, until } = require('./common');

const address = new URL(url);
const options = { host: address.hostname, port: Number(address.port), reconnect: false };

// One container per test; it is always closed.
function connect(context, more = {}) {
  const container = rhea.create_container();
  const connection = container.connect({ ...options, ...more });
  context.after(() => connection.close());
  return connection;
}

const once = (emitter, name) => new Promise((resolve) => emitter.once(name, resolve));

test('messages come as they went', async (context) => {
  const queue = unique('simple');
  const connection = connect(context);
  const sender = connection.open_sender(queue);
  await once(sender, 'sendable');
  const bodies = ['text', { a: 1, b: [true, null] }, 42, rhea.message.data_section(Buffer.from('octets'))];
  const outcomes = [];
  connection.on('accepted', (event) => outcomes.push(event.delivery.id));
  bodies.forEach((body, number) => sender.send({ body, message_id: number, durable: true, application_properties: { number } }));
  const found = [];
  await new Promise((resolve) => {
    connection.open_receiver(queue);
    connection.on('message', (event) => {
      found.push(event.message);
      if (found.length === bodies.length) resolve();
    });
  });
  assert.deepStrictEqual(found.map((message) => message.message_id), [0, 1, 2, 3]);
  assert.deepStrictEqual(found.slice(0, 3).map((message) => message.body), bodies.slice(0, 3));
  assert.strictEqual(found[3].body.content.toString(), 'octets');
  assert.deepStrictEqual(found[2].application_properties, { number: 2 });
  await until(() => outcomes.length === bodies.length, 'accepted for each');
});

test('outcomes', async (context) => {
  const queue = unique('outcomes');
  const connection = connect(context);
  const sender = connection.open_sender(queue);
  await once(sender, 'sendable');
  sender.send({ body: 'm' });
  const counts = [];
  await new Promise((resolve) => {
    connection.open_receiver({ source: queue, autoaccept: false });
    connection.on('message', (event) => {
      counts.push(event.message.delivery_count || 0);
      if (counts.length === 1) event.delivery.release({ delivery_failed: true });
      else if (counts.length === 2) event.delivery.release();
      else {
        event.delivery.accept();
        resolve();
      }
    });
  });
  assert.deepStrictEqual(counts, [0, 1, 1]);
});

test('a request and its response', async (context) => {
  const queue = unique('requests');
  const server = connect(context);
  const answers = server.open_sender({ target: {} });
  server.on('message', (event) => {
    const { body, reply_to, correlation_id } = event.message;
    answers.send({ to: reply_to, body: body.toUpperCase(), correlation_id });
  });
  server.open_receiver(queue);
  const client = connect(context);
  const requests = client.open_sender(queue);
  const replies = client.open_receiver({ source: { dynamic: true } });
  await once(replies, 'receiver_open');
  requests.send({ body: 'hello', reply_to: replies.source.address, correlation_id: 'c' });
  const { message } = await once(client, 'message');
  assert.strictEqual(message.body, 'HELLO');
  assert.strictEqual(message.correlation_id, 'c');
});

test('unrouted messages are released, and missing addresses are refused', async (context) => {
  const connection = connect(context);
  const sender = connection.open_sender('/exchanges/amq.direct/nowhere');
  await once(sender, 'sendable');
  sender.send({ body: 'm' });
  await once(connection, 'released');
  const receiver = connection.open_receiver('/queues/none');
  const { receiver: refused } = await once(receiver, 'receiver_error');
  assert.strictEqual(refused.error.condition, 'amqp:not-found');
});

test('a selector', async (context) => {
  const queue = unique('selector');
  const connection = connect(context);
  const sender = connection.open_sender(queue);
  await once(sender, 'sendable');
  for (const colour of ['green', 'red', 'green']) sender.send({ body: colour, application_properties: { colour } });
  connection.open_receiver({ source: { address: queue, filter: rhea.filter.selector("colour = 'red'") } });
  const { message } = await once(connection, 'message');
  assert.strictEqual(message.body, 'red');
});

test('drain', async (context) => {
  const connection = connect(context);
  const receiver = connection.open_receiver({ source: unique('drain'), credit_window: 0 });
  await once(receiver, 'receiver_open');
  receiver.drain_credit();
  receiver.add_credit(5);
  await once(receiver, 'receiver_drained');
});

test('a login with a password', async (context) => {
  const right = connect(context, { username: address.username, password: decodeURIComponent(address.password) });
  await once(right, 'connection_open');
  assert.strictEqual(right.remote.open.properties.product, 'RabbitMQ');
  const wrong = connect(context, { username: address.username, password: 'wrong' });
  const error = await once(wrong, 'connection_error');
  assert.ok(error);
});

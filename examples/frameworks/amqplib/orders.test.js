'use strict';
// A worker process gets orders, and the failed ones are dead-lettered.

const assert = require('node:assert');
const { spawn } = require('node:child_process');
const { once } = require('node:events');
const path = require('node:path');
const test = require('node:test');
const { amqp, URL, QUEUE, FAILED, place } = require('./orders');

let connection;
const workers = [];

test.before(async () => { connection = await amqp.connect(URL); });
test.after(async () => {
  await connection.close();
  workers.forEach((worker) => worker.process.kill('SIGKILL'));
});

function start() {
  const process_ = spawn(process.execPath, [path.join(__dirname, 'worker.js')], { stdio: ['ignore', 'pipe', 'inherit'] });
  const worker = { process: process_, log: '' };
  process_.stdout.on('data', (data) => { worker.log += data; });
  workers.push(worker);
  return worker;
}

async function wrote(worker, text, times = 1) {
  while (worker.log.split(text).length <= times) await once(worker.process.stdout, 'data');
}

const limit = { timeout: 60000 };

test('an order is done', limit, async () => {
  const worker = start();
  await wrote(worker, 'ready');
  await place(connection, [{ id: 1, amount: 20 }]);
  await wrote(worker, 'order 1 done');
});

test('a failing order is tried three times and dead-lettered', limit, async () => {
  await place(connection, [{ id: 2, amount: 0 }]);
  const channel = await connection.createChannel();
  let message;
  while (!(message = await channel.get(FAILED, { noAck: true })));
  assert.deepStrictEqual(JSON.parse(message.content), { id: 2, amount: 0 });
  assert.strictEqual(message.properties.headers['x-death'][0].reason, 'delivery_limit');
  await channel.close();
  await wrote(workers[0], 'order failed: amount 0', 3);
});

test('many orders', limit, async () => {
  await place(connection, Array.from({ length: 500 }, (_, number) => ({ id: 1000 + number, amount: 1 })));
  await wrote(workers[0], 'order 1499 done');
});

test('the worker ends on SIGTERM, and orders wait for the next one', limit, async () => {
  workers[0].process.kill('SIGTERM');
  const [status] = await once(workers[0].process, 'exit');
  assert.strictEqual(status, 0);
  await place(connection, [{ id: 3, amount: 5 }]);
  const channel = await connection.createChannel();
  assert.strictEqual((await channel.checkQueue(QUEUE)).messageCount, 1);
  await channel.close();
  await wrote(start(), 'order 3 done');
});

test('the worker consumes again after the broker cancelled its consumer', limit, async () => {
  const channel = await connection.createChannel();
  await channel.deleteQueue(QUEUE);
  await channel.close();
  await wrote(workers[1], 'ready', 2);
  await place(connection, [{ id: 4, amount: 5 }]);
  await wrote(workers[1], 'order 4 done');
});

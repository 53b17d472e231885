'use strict';

// amqplib's callback API, and the end of connections.

const net = require('node:net');
const test = require('node:test');
const assert = require('node:assert/strict');
const amqp = require('amqplib');
const callbacks = require('amqplib/callback_api');
const { url, unique, sleep, until, take, failure } = require('./common');

test('the callback API, start to end', (context, done) => {
  callbacks.connect(url, (error, connection) => {
    assert.ifError(error);
    connection.createConfirmChannel((error, channel) => {
      assert.ifError(error);
      const queue = unique('callback');
      channel.assertQueue(queue, { exclusive: true }, (error, ok) => {
        assert.ifError(error);
        assert.deepEqual(ok, { queue, messageCount: 0, consumerCount: 0 });
        // The delivery and the confirm arrive in either order.
        let missing = 2;
        const arrived = () => {
          missing -= 1;
          if (missing === 0) channel.close(() => connection.close(done));
        };
        channel.consume(queue, (message) => {
          assert.equal(message.content.toString(), 'hello');
          channel.ack(message);
          arrived();
        }, {}, (error) => {
          assert.ifError(error);
          channel.sendToQueue(queue, Buffer.from('hello'), {}, (error) => {
            assert.ifError(error);
            arrived();
          });
        });
      });
    });
  });
});

test('wrong password', async () => {
  const wrong = new URL(url);
  wrong.password = 'wrong';
  await assert.rejects(amqp.connect(wrong.toString()), /403|ACCESS.REFUSED|Handshake/i);
});

test('unknown virtual host', async () => {
  const wrong = new URL(url);
  wrong.pathname = '/missing';
  await assert.rejects(amqp.connect(wrong.toString()), /530|NOT.ALLOWED|Expected ConnectionOpenOk/i);
});

test('AMQPLAIN', async () => {
  const credentials = amqp.credentials.amqplain('guest', 'guest');
  const connection = await amqp.connect(url, { credentials });
  await connection.createChannel();
  await connection.close();
});

test('negotiation by the URL', async () => {
  const connection = await amqp.connect(`${url}?frameMax=8192&channelMax=5&heartbeat=3`);
  assert.equal(connection.connection.frameMax, 8192);
  assert.equal(connection.connection.heartbeat, 3);
  const channels = [];
  for (let n = 0; n < 5; n += 1) channels.push(await connection.createChannel());
  await assert.rejects(connection.createChannel(), /No channels/);
  const { queue } = await channels[0].assertQueue('', { exclusive: true });
  const body = Buffer.alloc(50000, 'x');
  channels[1].sendToQueue(queue, body);
  assert.ok((await take(channels[0], queue, { noAck: true })).content.equals(body));
  await connection.close();
});

test('heartbeats keep an idle connection', async () => {
  const connection = await amqp.connect(`${url}?heartbeat=1`);
  let failed = null;
  connection.on('error', (error) => { failed = error; });
  await sleep(3500);
  assert.equal(failed, null);
  await connection.createChannel();
  await connection.close();
});

test('a connection error names its code', async () => {
  const connection = await amqp.connect(url);
  const error = failure(connection);
  const channel = await connection.createChannel();
  channel.on('error', () => {});
  await assert.rejects(channel.assertExchange(unique('x'), 'no-such-type'));
  assert.equal((await error).code, 503);
});

test('update-secret', async () => {
  const connection = await amqp.connect(url);
  await connection.updateSecret(Buffer.from('guest'), 'renewed');
  await connection.createChannel();
  await connection.close();
});

test('messages of a broken connection come back', async () => {
  const address = new URL(url);
  const sockets = [];
  const proxy = net.createServer((client) => {
    const server = net.connect(Number(address.port), address.hostname);
    sockets.push(client, server);
    for (const socket of [client, server]) socket.on('error', () => {});
    client.pipe(server);
    server.pipe(client);
  });
  await new Promise((resolve) => { proxy.listen(0, '127.0.0.1', resolve); });
  const through = new URL(url);
  through.hostname = '127.0.0.1';
  through.port = proxy.address().port;

  const steady = await amqp.connect(url);
  const channel = await steady.createConfirmChannel();
  const queue = unique('broken');
  await channel.assertQueue(queue, { durable: false });
  channel.sendToQueue(queue, Buffer.from('x'));
  await channel.waitForConfirms();

  const doomed = await amqp.connect(through.toString());
  const error = failure(doomed);
  const consumer = await doomed.createChannel();
  consumer.on('error', () => {});
  const got = new Promise((resolve) => { consumer.consume(queue, resolve); });
  assert.equal((await got).fields.redelivered, false);
  assert.equal(await channel.get(queue), false);
  for (const socket of sockets) socket.destroy();
  await error;
  const again = await take(channel, queue, { noAck: true });
  assert.equal(again.fields.redelivered, true);
  await channel.deleteQueue(queue);
  await steady.close();
  await new Promise((resolve) => { proxy.close(resolve); });
});

test('many connections', async () => {
  const connections = await Promise.all(Array.from({ length: 50 }, () => amqp.connect(url)));
  const channels = await Promise.all(connections.map((connection) => connection.createChannel()));
  const queue = unique('shared');
  await channels[0].assertQueue(queue, { durable: false });
  channels.forEach((channel, n) => channel.sendToQueue(queue, Buffer.from(String(n))));
  await until(async () => (await channels[0].checkQueue(queue)).messageCount === 50);
  await channels[0].deleteQueue(queue);
  await Promise.all(connections.map((connection) => connection.close()));
});

'use strict';

// amqplib's promise API.

const test = require('node:test');
const assert = require('node:assert/strict');
const amqp = require('amqplib');
const { url, unique, until, take, failure } = require('./common');

let connection;
test.before(async () => {
  connection = await amqp.connect(url, { clientProperties: { connection_name: 'größe' } });
});
test.after(() => connection.close());

test('server properties', () => {
  const properties = connection.connection.serverProperties;
  assert.equal(properties.capabilities.publisher_confirms, true);
  assert.equal(properties.capabilities['basic.nack'], true);
  assert.equal(typeof properties.version, 'string');
});

test('properties and headers of every type', async () => {
  const channel = await connection.createChannel();
  const { queue } = await channel.assertQueue('', { exclusive: true });
  assert.match(queue, /^amq\.gen-/);
  const headers = {
    text: 'grüße', int: 5, negative: -70000, big: 2 ** 40, double: 1.5, flag: true, nothing: null,
    buffer: Buffer.from([0, 255]), list: [1, 'two', { three: 3 }], table: { deep: { deeper: [] } },
    short: { '!': 'short', value: 7 }, float: { '!': 'float', value: 0.5 }, time: { '!': 'timestamp', value: 1700000000 },
    decimal: { '!': 'decimal', value: { places: 2, digits: 314 } },
  };
  channel.sendToQueue(queue, Buffer.from('body'), {
    headers, contentType: 'text/plain', contentEncoding: 'utf-8', persistent: true, priority: 5, correlationId: 'c',
    replyTo: 'r', expiration: 60000, messageId: 'm', timestamp: 1700000000, type: 't', userId: 'guest', appId: 'a',
  });
  const message = await take(channel, queue, { noAck: true });
  assert.deepEqual(message.content, Buffer.from('body'));
  const got = message.properties;
  assert.equal(got.headers.text, 'grüße');
  assert.deepEqual(got.headers.buffer, Buffer.from([0, 255]));
  assert.deepEqual(got.headers.list, [1, 'two', { three: 3 }]);
  assert.deepEqual(got.headers.table, { deep: { deeper: [] } });
  assert.equal(got.headers.big, 2 ** 40);
  assert.equal(got.headers.short, 7);
  assert.equal(got.headers.float, 0.5);
  assert.deepEqual(got.headers.time, headers.time);
  assert.deepEqual(got.headers.decimal, headers.decimal);
  assert.equal(got.headers.nothing, null);
  assert.equal(got.expiration, '60000');
  assert.equal(got.deliveryMode, 2);
  assert.equal(got.timestamp, 1700000000);
  assert.equal(got.userId, 'guest');
  await channel.close();
});

test('consume, ack, nack, cancel', async () => {
  const channel = await connection.createChannel();
  const queue = unique('consume');
  await channel.assertQueue(queue, { exclusive: true });
  await channel.prefetch(3);
  const messages = [];
  const { consumerTag } = await channel.consume(queue, (message) => messages.push(message));
  for (let n = 0; n < 6; n += 1) channel.sendToQueue(queue, Buffer.from(String(n)));
  await until(() => messages.length === 3);
  channel.ack(messages[0]);
  channel.nack(messages[1], false, false);
  channel.reject(messages[2], true);
  await until(() => messages.length >= 6);
  assert.equal(messages.filter((message) => message.fields.redelivered).length, 1);
  await channel.cancel(consumerTag);
  channel.ackAll();
  await until(async () => (await channel.checkQueue(queue)).messageCount + messages.length >= 6);
  await channel.close();
});

test('recover', async () => {
  const channel = await connection.createChannel();
  const queue = unique('recover');
  await channel.assertQueue(queue, { exclusive: true });
  channel.sendToQueue(queue, Buffer.from('x'));
  assert.equal((await take(channel, queue)).fields.redelivered, false);
  await channel.recover();
  assert.equal((await take(channel, queue)).fields.redelivered, true);
  await channel.close();
});

test('confirms of a thousand', async () => {
  const channel = await connection.createConfirmChannel();
  const queue = unique('confirm');
  await channel.assertQueue(queue, { durable: true });
  let confirmed = 0;
  for (let n = 0; n < 1000; n += 1) {
    channel.sendToQueue(queue, Buffer.alloc(100, n), { persistent: true }, (error) => {
      assert.equal(error, null);
      confirmed += 1;
    });
  }
  await channel.waitForConfirms();
  assert.equal(confirmed, 1000);
  assert.equal((await channel.checkQueue(queue)).messageCount, 1000);
  assert.equal((await channel.purgeQueue(queue)).messageCount, 1000);
  await channel.deleteQueue(queue);
  await channel.close();
});

test('a nacked publish', async () => {
  const channel = await connection.createConfirmChannel();
  const queue = unique('full');
  await channel.assertQueue(queue, { exclusive: true, maxLength: 1, overflow: 'reject-publish' });
  channel.sendToQueue(queue, Buffer.from('1'));
  await channel.waitForConfirms();
  channel.sendToQueue(queue, Buffer.from('2'));
  await assert.rejects(channel.waitForConfirms());
  await channel.close();
});

test('returned messages', async () => {
  const channel = await connection.createConfirmChannel();
  const returned = [];
  channel.on('return', (message) => returned.push(message));
  channel.publish('', unique('nowhere'), Buffer.from('back'), { mandatory: true });
  await channel.waitForConfirms();
  assert.equal(returned.length, 1);
  assert.equal(returned[0].fields.replyCode, 312);
  assert.equal(returned[0].fields.replyText, 'NO_ROUTE');
  await channel.close();
});

test('as fast as the drain event allows', async () => {
  const channel = await connection.createConfirmChannel();
  const queue = unique('drain');
  await channel.assertQueue(queue, { exclusive: true });
  const body = Buffer.alloc(100000);
  for (let n = 0; n < 100; n += 1) {
    if (!channel.sendToQueue(queue, body)) await new Promise((resolve) => channel.once('drain', resolve));
  }
  await channel.waitForConfirms();
  assert.equal((await channel.checkQueue(queue)).messageCount, 100);
  await channel.close();
});

test('ten megabytes', async () => {
  const channel = await connection.createConfirmChannel();
  const queue = unique('large');
  await channel.assertQueue(queue, { exclusive: true });
  const body = Buffer.alloc(10 * 1024 * 1024, 'abcdefg');
  channel.sendToQueue(queue, body);
  await channel.waitForConfirms();
  const message = await take(channel, queue, { noAck: true });
  assert.ok(message.content.equals(body));
  await channel.close();
});

test('routing: topic, headers, alternate, between exchanges', async () => {
  const channel = await connection.createChannel();
  const [topic, headers, alternate, queue, lost] = ['t', 'h', 'a', 'q', 'l'].map(unique);
  await channel.assertExchange(alternate, 'fanout', { autoDelete: true });
  await channel.assertExchange(topic, 'topic', { autoDelete: true, alternateExchange: alternate });
  await channel.assertExchange(headers, 'headers', { autoDelete: true });
  await channel.assertQueue(queue, { exclusive: true });
  await channel.assertQueue(lost, { exclusive: true });
  await channel.bindQueue(lost, alternate, '');
  await channel.bindExchange(headers, topic, 'a.#');
  await channel.bindQueue(queue, headers, '', { 'x-match': 'any', kind: 'good' });
  channel.publish(topic, 'a.b', Buffer.from('1'), { headers: { kind: 'good' } });
  channel.publish(topic, 'a.b', Buffer.from('2'), { headers: { kind: 'bad' } });
  channel.publish(topic, 'z', Buffer.from('3'));
  assert.equal((await take(channel, queue, { noAck: true })).content.toString(), '1');
  assert.equal(await channel.get(queue), false);
  // A message that an exchange-to-exchange binding routes to no queue is unroutable, too: both go to the alternate exchange.
  const first = (await take(channel, lost, { noAck: true })).content.toString();
  assert.ok(['2', '3'].includes(first));
  await channel.unbindExchange(headers, topic, 'a.#');
  await channel.close();
});

test('carbon copies', async () => {
  const channel = await connection.createChannel();
  const [main, cc, bcc] = ['main', 'cc', 'bcc'].map(unique);
  for (const queue of [main, cc, bcc]) await channel.assertQueue(queue, { exclusive: true });
  channel.sendToQueue(main, Buffer.from('x'), { CC: [cc], BCC: bcc });
  for (const queue of [main, cc, bcc]) {
    const message = await take(channel, queue, { noAck: true });
    assert.deepEqual(message.properties.headers.CC, [cc]);
    assert.equal(message.properties.headers.BCC, undefined);
  }
  await channel.close();
});

test('dead letters', async () => {
  const channel = await connection.createChannel();
  const [queue, dead] = ['work', 'dead'].map(unique);
  await channel.assertQueue(dead, { exclusive: true });
  await channel.assertQueue(queue, { exclusive: true, messageTtl: 30, deadLetterExchange: '', deadLetterRoutingKey: dead });
  channel.sendToQueue(queue, Buffer.from('x'));
  const message = await take(channel, dead, { noAck: true });
  const [death] = message.properties.headers['x-death'];
  assert.equal(death.reason, 'expired');
  assert.equal(death.queue, queue);
  assert.equal(death.count, 1);
  assert.deepEqual(death['routing-keys'], [queue]);
  assert.equal(death.time['!'], 'timestamp');
  await channel.close();
});

test('direct reply-to', async () => {
  const client = await connection.createChannel();
  const server = await connection.createChannel();
  const queue = unique('rpc');
  await server.assertQueue(queue, { exclusive: true });
  await server.consume(queue, (message) => {
    server.publish('', message.properties.replyTo, Buffer.from(`re: ${message.content}`), {
      correlationId: message.properties.correlationId,
    });
  }, { noAck: true });
  const reply = new Promise((resolve) => {
    client.consume('amq.rabbitmq.reply-to', resolve, { noAck: true });
  });
  await until(async () => (await server.checkQueue(queue)).consumerCount === 1);
  client.sendToQueue(queue, Buffer.from('question'), { replyTo: 'amq.rabbitmq.reply-to', correlationId: '7' });
  const message = await reply;
  assert.equal(message.content.toString(), 're: question');
  assert.equal(message.properties.correlationId, '7');
  await client.close();
  await server.close();
});

test('a consumer is told when its queue goes', async () => {
  const channel = await connection.createChannel();
  const queue = unique('goes');
  await channel.assertQueue(queue);
  const told = new Promise((resolve) => {
    channel.consume(queue, (message) => message === null && resolve(true));
  });
  await until(async () => (await channel.checkQueue(queue)).consumerCount === 1);
  const other = await connection.createChannel();
  await other.deleteQueue(queue);
  assert.equal(await told, true);
  await channel.close();
  await other.close();
});

for (const [what, code, attempt] of [
  ['a missing queue', 404, (channel) => channel.checkQueue(unique('missing'))],
  ['a missing exchange', 404, (channel) => channel.checkExchange(unique('missing'))],
  ['a reserved name', 403, (channel) => channel.assertQueue('amq.mine')],
  ['a bad argument', 406, (channel) => channel.assertQueue(unique('bad'), { arguments: { 'x-message-ttl': -1 } })],
  ['a missing exchange to publish to', 404, (channel) => {
    channel.publish(unique('missing'), '', Buffer.from(''));
    return channel.assertQueue('', { exclusive: true });
  }],
]) {
  test(`error ${code} for ${what}`, async () => {
    const channel = await connection.createChannel();
    const error = failure(channel);
    await assert.rejects(Promise.resolve(attempt(channel)));
    assert.equal((await error).code, code);
  });
}

test('an acknowledgement too many', async () => {
  const channel = await connection.createChannel();
  const queue = unique('double');
  await channel.assertQueue(queue, { exclusive: true });
  channel.sendToQueue(queue, Buffer.from('x'));
  const message = await take(channel, queue);
  const error = failure(channel);
  channel.ack(message);
  channel.ack(message);
  assert.equal((await error).code, 406);
});

test('many channels', async () => {
  const channels = await Promise.all(Array.from({ length: 200 }, () => connection.createChannel()));
  const queues = await Promise.all(channels.map((channel) => channel.assertQueue('', { exclusive: true })));
  channels.forEach((channel, n) => channel.sendToQueue(queues[n].queue, Buffer.from(String(n))));
  const bodies = await Promise.all(channels.map((channel, n) => take(channel, queues[n].queue, { noAck: true })));
  assert.deepEqual(bodies.map((message) => Number(message.content)), channels.map((_, n) => n));
  await Promise.all(channels.map((channel) => channel.close()));
});

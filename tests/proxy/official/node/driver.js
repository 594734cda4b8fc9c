// RocketMQ's own Node.js client, controlled by JSON lines; ../python_driver.py documents them and does the same.
'use strict';

const readline = require('node:readline');
const { FilterExpression, ConsumeResult, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const [endpoints] = process.argv.slice(2);
const quiet = () => {};
const logger = { debug: quiet, info: quiet, warn: quiet, error: (...words) => console.error(...words), close: quiet };
const { OFFICIAL_ACCESS_KEY: accessKey, OFFICIAL_SECRET_KEY: accessSecret } = process.env;
const sessionCredentials = accessKey ? { accessKey, accessSecret } : undefined;
const settings = { endpoints, namespace: '', requestTimeout: 30000, logger, sessionCredentials };
const clients = new Map();
const received = new Map();

const tell = what => process.stdout.write(`${JSON.stringify(what)}\n`);

const shown = message => ({
  topic: message.topic,
  body: message.body.toString(),
  messageId: message.messageId,
  tag: message.tag || null,
  keys: [ ...message.keys ].sort(),
  properties: Object.fromEntries(message.properties),
  group: message.messageGroup || null,
  bornHost: message.bornHost,
  bornTimestamp: message.bornTimestamp.getTime(),
  attempt: message.deliveryAttempt,
  corrupted: message.corrupted ?? false,
});

function built({ body, deliverAt, group, properties, ...given }) {
  const message = { ...given, body: Buffer.from(body), messageGroup: group };
  if (properties) message.properties = new Map(Object.entries(properties));
  if (deliverAt) message.deliveryTimestamp = new Date(deliverAt);
  return message;
}

const subscriptions = topics => new Map(Object.entries(topics).map(
  ([ topic, [ text, kind ] ]) => [ topic, new FilterExpression(text, FilterType[kind]) ]));

const commands = {
  async producer(name, { topics }) {
    const check = async message => {
      tell({ as: name, event: 'check', message: shown(message) });
      const { COMMIT, ROLLBACK } = TransactionResolution;
      return message.body.toString().includes('commit') ? COMMIT : ROLLBACK;
    };
    const client = new Producer({ ...settings, topics, checker: { check } });
    await client.startup();
    clients.set(name, client);
  },

  async send(name, { message, transaction }) {
    const producer = clients.get(name);
    const begun = transaction && producer.beginTransaction();
    const receipt = await producer.send(built(message), begun || undefined);
    if (transaction && transaction !== 'leave') await begun[transaction]();
    const { messageId, transactionId, offset, recallHandle } = receipt;
    return { messageId, transactionId, offset, recallHandle };
  },

  async recall(name, { topic, handle }) {
    return (await clients.get(name).recallMessage(topic, handle)).messageId;
  },

  async simple(name, { group, topics }) {
    const client = new SimpleConsumer({
      ...settings, consumerGroup: group, subscriptions: subscriptions(topics), awaitDuration: 10000,
    });
    await client.startup();
    clients.set(name, client);
  },

  async receive(name, { most = 32, invisible = 30 }) {
    const messages = await clients.get(name).receive(most, invisible * 1000);
    for (const message of messages) received.set(message.messageId, message);
    return messages.map(shown);
  },

  async ack(name, { message }) {
    await clients.get(name).ack(received.get(message));
  },

  async change(name, { message, invisible }) {
    await clients.get(name).changeInvisibleDuration(received.get(message), invisible * 1000);
  },

  async push(name, { group, topics, failures = {} }) {
    const consume = async message => {
      const left = failures[message.body.toString()] ?? 0;
      failures[message.body.toString()] = left - 1;
      tell({ as: name, event: left > 0 ? 'fail' : 'success', message: shown(message) });
      return left > 0 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    };
    const client = new PushConsumer({
      ...settings, consumerGroup: group, subscriptions: subscriptions(topics), messageListener: { consume },
    });
    await client.startup();
    clients.set(name, client);
  },

  async stop(name) {
    const client = clients.get(name);
    clients.delete(name);
    await client.shutdown();
  },
};

const input = readline.createInterface({ input: process.stdin });
input.on('line', async line => {
  const { id, do: what, as: name, ...rest } = JSON.parse(line);
  try {
    tell({ id, ok: await commands[what](name, rest) ?? null });
  } catch (error) {
    tell({ id, error: `${error.name}: ${error.message}`, code: error.code ?? null });
  }
});
input.on('close', () => process.exit(0)); // what still polls is not waited for

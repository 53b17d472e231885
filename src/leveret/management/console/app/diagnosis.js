// Why a queue grows, a consumer is idle or a publisher is stopped: sentences about facts that the API gives.

import { agree, count, duration, plural, rate } from "./format.js";

// Messages must be acknowledged slower than this part of the publish rate to count as too slow.
const SLOW = 0.9;

/** Returns findings about a queue, the most important first. */
export function diagnose(queue) {
  const found = [];
  const stats = queue.message_stats ?? {};
  const published = stats.publish_details?.rate ?? 0;
  const delivered = stats.deliver_get_details?.rate ?? 0;
  const acked = stats.ack_details?.rate ?? 0;
  if (queue.type === "stream") {
    return found;
  }
  if (queue.consumers === 0 && queue.messages_ready > 0) {
    found.push(`${plural(queue.messages_ready, "message")} ${agree(queue.messages_ready, "waits", "wait")}, and the queue has no consumer.`);
  }
  if (queue.consumers > 0 && queue.messages_ready > 0 && queue.messages_unacknowledged > 0 && delivered === 0) {
    found.push(
      `Consumers take no more messages: ${count(queue.messages_unacknowledged)} ${agree(queue.messages_unacknowledged, "is", "are")} unacked. ` +
        "Their prefetch limit is reached, or they do not acknowledge.",
    );
  } else if (queue.consumers > 0 && queue.messages_ready > 0 && queue.messages_unacknowledged === 0 && delivered === 0) {
    found.push("Consumers have no credit: none of them takes a message, although none is unacked.");
  }
  if (queue.consumers > 0 && published > 1 && acked < SLOW * published) {
    found.push(`Messages arrive faster than consumers acknowledge them: ${rate(published)} against ${rate(acked)}.`);
  }
  const limit = queue.arguments?.["x-max-length"] ?? queue.effective_policy_definition?.["max-length"];
  if (limit && queue.messages_ready >= limit) {
    found.push(`The length limit of ${count(limit)} is reached: messages are dropped, dead-lettered or rejected.`);
  }
  return found;
}

/**
 * Returns why consumers of a queue get no messages: `[{text, tags}]` with the tags of the consumers for which it is true.
 *
 * `consumers` are those of `/leveret/queues/VHOST/NAME/consumers`.
 */
export function diagnoseConsumers(queue, consumers) {
  const found = new Map();
  for (const consumer of consumers) {
    const [text, age] = whyIdle(queue, consumer) ?? [];
    if (text) {
      const { tags, oldest } = found.get(text) ?? { tags: [], oldest: 0 };
      found.set(text, { tags: [...tags, consumer.consumer_tag], oldest: Math.max(oldest, age ?? 0) });
    }
  }
  return [...found].map(([text, { tags, oldest }]) => ({ text: oldest ? `${text} The oldest has been unacked for ${duration(1000 * oldest)}.` : text, tags }));
}

/** Returns why a consumer gets no messages, and the age of its oldest unacked message in seconds if that is why; or null. */
function whyIdle(queue, { active, ack_required: acks, prefetch_count: limit, unacked, oldest_unacked_age: age, connection, channel }) {
  if (queue.state === "paused") {
    return ["The queue is paused: an operator has stopped its deliveries."];
  }
  if (!active && queue.single_active_consumer_tag) {
    return [`The queue has a single active consumer, ${queue.single_active_consumer_tag}; the others wait until it is cancelled.`];
  }
  if (connection?.state === "blocked" && unacked > 0) {
    return ["An alarm blocks the connection: the broker does not read its acknowledgements."];
  }
  if (channel?.state === "flow off") {
    return ["The client has stopped deliveries with channel.flow."];
  }
  if (acks && limit > 0 && unacked >= limit) {
    return [`The prefetch limit of ${count(limit)} is reached: ${plural(unacked, "message")} ${agree(unacked, "is", "are")} unacked. ${lastAck(queue)}`.trim(), age];
  }
  if (acks && channel?.prefetch > 0 && channel.unacked >= channel.prefetch) {
    return [
      `The channel's prefetch limit of ${count(channel.prefetch)} is reached: ${plural(channel.unacked, "message")} ${agree(channel.unacked, "is", "are")} unacked. ${lastAck(queue)}`.trim(),
      channel.oldest_unacked_age,
    ];
  }
  if (channel?.credit === 0) {
    return ["The client has granted no credit.", age];
  }
  if (queue.type !== "stream" && queue.messages_ready === 0) {
    return [queue.message_stats?.publish > 0 ? "The queue has no ready message." : "No message has reached the queue yet: check its bindings."];
  }
  return null;
}

/** Returns when the queue was last acknowledged, as far as the samples reach. */
function lastAck({ message_stats: stats }) {
  const samples = stats?.ack_details?.samples ?? []; // the newest first
  const [newest, oldest] = [samples[0], samples.at(-1)];
  const before = samples.findIndex(({ sample }) => sample < newest.sample);
  if (before >= 0) {
    return `The queue's last acknowledgement was ${duration(newest.timestamp - samples[before].timestamp)} ago.`;
  }
  return newest === oldest ? "" : `The queue got no acknowledgement in the last ${duration(newest.timestamp - oldest.timestamp)}.`;
}

const THROTTLED = {
  commit: "The disk is slower than the publishers: the broker reads no more until messages are committed.",
  output: "The client does not read what the broker sends, so that the broker reads nothing from it.",
  backlog: "Commands of a channel wait for a slow one, such as a commit.",
  behind: "The broker is behind: its queues have messages that it could deliver, so it reads less from this publisher until it has.",
};

/**
 * Returns why a connection publishes less than it wants to, the most important reason first.
 *
 * `throttling` is the answer of `/leveret/connections/NAME/throttling`.
 */
export function diagnosePublisher(connection, channels, { reasons, alarm }) {
  const found = [];
  if (reasons.includes("alarm")) {
    found.push(`The ${alarm || "resource"} alarm blocks this connection: the broker reads nothing from it until the alarm is cleared.`);
  } else if (alarm) {
    found.push(`The ${alarm} alarm is in effect: the broker blocks the connection as soon as it publishes.`);
  }
  for (const reason of reasons) {
    if (reason in THROTTLED) {
      found.push(THROTTLED[reason]);
    }
  }
  if (connection.channel_max > 0 && connection.channels >= connection.channel_max) {
    found.push(`The limit of ${plural(connection.channel_max, "channel")} is reached: the client cannot open another one.`);
  }
  const sum = (valueOf) => channels.reduce((total, channel) => total + (valueOf(channel) ?? 0), 0);
  const rateOf = (name) => sum((channel) => channel.message_stats?.[`${name}_details`]?.rate);
  const unconfirmed = sum((channel) => channel.messages_unconfirmed);
  if (unconfirmed > 0 && rateOf("confirm") === 0) {
    found.push(`${plural(unconfirmed, "published message")} ${unconfirmed === 1 ? "is" : "are"} not confirmed.`);
  }
  const unroutable = rateOf("return_unroutable") + rateOf("drop_unroutable");
  if (unroutable > 0) {
    found.push(`Messages reach no queue: ${rate(unroutable)} are returned or dropped, because no binding matches.`);
  }
  return found;
}

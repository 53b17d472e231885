// Why a queue grows or stands still, in sentences, from what the API says about it.

import { count, plural, rate } from "./format.js";

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
    found.push(`${plural(queue.messages_ready, "message")} wait, and the queue has no consumer.`);
  }
  if (queue.consumers > 0 && queue.messages_ready > 0 && queue.messages_unacknowledged > 0 && delivered === 0) {
    found.push(
      `Consumers take no more messages: ${count(queue.messages_unacknowledged)} are unacked. ` +
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

// The lessons. A step executes operations at the broker and compares what happened with what the learner expected.
//
// Lesson: `{id, title, summary, queues, exchanges, steps}`; `queues` and `exchanges` are the names without their prefix.
// Step:
//   id, title, text(name): What it is about; `name(short)` returns a name with its prefix.
//   ask: A question before the step: `{kind, label, example, options}` with the kind "text", "number", "one" or "many". `options` are
//     pairs of value and text. The example is a right answer.
//   label: What the button says.
//   operations(name, answer): What the step does.
//   check(found, answer): What happened: `{right, text}`. `found` has the `results` of the operations, the `queues` afterwards
//     and how many ready messages each has `gained`, both by their names without the prefix.
//   within: Seconds in which the check is repeated while its outcome has `wait`.

import { count, plural } from "../format.js";
import { html } from "../html.js";

// Milliseconds after which an unused queue of a lesson is deleted.
const EXPIRES = 1800000;

const queue = (name, given = {}) => ["queue", { name, durable: true, auto_delete: false, arguments: { "x-expires": EXPIRES, ...given } }];
const stream = (name) => ["queue", { name, durable: true, auto_delete: false, arguments: { "x-queue-type": "stream" } }];
const exchange = (name, type) => ["exchange", { name, type, durable: true, auto_delete: true, internal: false, arguments: {} }];
const binding = (source, destination, key = "") => ["binding", { source, destination, destination_type: "queue", routing_key: key, arguments: {} }];
const message = (to, key, payload) => ["message", { exchange: to, routing_key: key, payload, payload_encoding: "string", properties: { delivery_mode: 2 } }];
const take = (name, outcome, number = 1) => ["get", { queue: name, count: number, outcome }];
const look = (name, number = 10) => ["browse", { queue: name, offset: 0, count: number, stream: false }];
const read = (name, offset, number) => ["browse", { queue: name, offset, count: number, stream: true }];
const worker = (name, prefetch) => ["worker", { queue: name, prefetch }];

const list = (names) => (names.length ? names.join(", ") : "no queue");
const payloads = (messages) => messages.map(({ payload }) => payload).join(", ");
const code = (text) => html`<code>${text}</code>`;
const YES_NO = [["yes", "yes"], ["no", "no"]];

/** Returns the outcome of a step in which the learner predicts which queues a message reaches. */
function reached({ gained }, answer) {
  const queues = Object.keys(gained).filter((name) => gained[name] > 0).sort();
  const right = [...answer].sort().join() === queues.join();
  return { right, text: `The message reached ${list(queues)}.` };
}

/** Returns the outcome of a step in which the learner predicts the number of ready messages. */
function ready(found, name, answer) {
  const number = found.queues[name].messages_ready;
  return { right: number === Number(answer), text: `${plural(number, "message")} ${number === 1 ? "is" : "are"} ready.` };
}

const FIRST_MESSAGE = {
  id: "first-message",
  title: "First message",
  summary: "Declare a queue, publish a message to it, and take the message.",
  queues: ["hello"],
  exchanges: [],
  steps: [
    {
      id: "declare",
      title: "Declare a queue",
      text: () => html`<p>A queue keeps messages until a consumer takes them. Publishers and consumers both declare the queues that they use: a queue that exists with the same settings stays as it is.</p>`,
      label: "Declare the queue",
      operations: (name) => [queue(name("hello"))],
      check: ({ queues }) => ({ right: queues.hello.messages_ready === 0, text: `The queue exists and has ${plural(queues.hello.messages_ready, "message")}.` }),
    },
    {
      id: "publish",
      title: "Publish a message",
      text: (name) => html`<p>Publishers send to an <em>exchange</em>, which passes messages on to queues. The default exchange, whose name is empty, passes a message to the queue whose name is its routing key: ${code(name("hello"))}.</p>`,
      ask: { kind: "text", label: "Your message", example: "It works" },
      label: "Publish",
      operations: (name, answer) => [message("", name("hello"), answer)],
      check: ({ results, gained }) => ({ right: gained.hello === 1, text: results[0].routed ? "The message reached the queue." : "No queue has this name, so that the broker dropped the message." }),
    },
    {
      id: "look",
      title: "Look at the message",
      text: () => html`<p>The broker shows messages of a queue without a consumer: they stay where they are. The message browser of each queue in this console does the same.</p>`,
      ask: { kind: "number", label: "How many messages are ready afterwards?", example: "1" },
      label: "Look",
      operations: (name) => [look(name("hello"))],
      check: (found, answer) => {
        const outcome = ready(found, "hello", answer);
        return { ...outcome, text: `The queue has: ${payloads(found.results[0])}. ${outcome.text}` };
      },
    },
    {
      id: "take",
      title: "Take the message",
      text: () => html`<p>A consumer gets a message and <em>acknowledges</em> it when its work is done. Only then does the broker delete the message.</p>`,
      ask: { kind: "number", label: "How many messages are ready after the acknowledgement?", example: "0" },
      label: "Get and acknowledge",
      operations: (name) => [take(name("hello"), "ack")],
      check: (found, answer) => ready(found, "hello", answer),
    },
  ],
};

const WORK_QUEUE = {
  id: "work-queue",
  title: "Work queue",
  summary: "Share tasks among workers, with acknowledgements and prefetch.",
  queues: ["tasks"],
  exchanges: [],
  steps: [
    {
      id: "fill",
      title: "Publish three tasks",
      text: () => html`<p>Workers on one queue share its messages: each message goes to one of them.</p>`,
      label: "Declare and publish",
      operations: (name) => [queue(name("tasks")), ...["task 1", "task 2", "task 3"].map((text) => message("", name("tasks"), text))],
      check: ({ gained }) => ({ right: gained.tasks === 3, text: `${plural(gained.tasks, "task")} more ${gained.tasks === 1 ? "is" : "are"} ready.` }),
    },
    {
      id: "fail",
      title: "A worker fails",
      text: () => html`<p>A worker gets ${code("task 1")} and ends before it acknowledges. The broker puts the message back to its place.</p>`,
      ask: { kind: "number", label: "How many tasks are ready afterwards?", example: "3" },
      label: "Get and fail",
      operations: (name) => [take(name("tasks"), "requeue")],
      check: (found, answer) => ready(found, "tasks", answer),
    },
    {
      id: "again",
      title: "The next worker",
      text: () => html`<p>The next worker takes the first task and acknowledges it. A message that was delivered before has the mark <em>redelivered</em>, because its work may have been done already.</p>`,
      ask: { kind: "one", label: "Is its task marked as redelivered?", options: () => YES_NO, example: "yes" },
      label: "Get and acknowledge",
      operations: (name) => [take(name("tasks"), "ack")],
      check: ({ results: [[found]] }, answer) => ({
        right: Boolean(found) && found.redelivered === (answer === "yes"),
        text: found ? `The worker got ${found.payload}, ${found.redelivered ? "" : "not "}redelivered.` : "No task is ready.",
      }),
    },
    {
      id: "prefetch",
      title: "Prefetch",
      text: () => html`
        <p>The broker sends a worker more messages while it still works, up to its <em>prefetch</em>. With a prefetch of 1, a slow worker gets one message at a time, and the others stay for faster workers.</p>
        <p>Start the worker below in a terminal, by Python or the command line, and do not let it acknowledge.</p>
      `,
      ask: { kind: "number", label: "Two tasks are in the queue. How many are ready while the worker has its task?", example: "1" },
      label: "Check the worker",
      within: 5,
      operations: (name) => [worker(name("tasks"), 1)],
      check: ({ queues: { tasks } }, answer) => {
        const found = tasks.consumer_details.find(({ prefetch_count: prefetch }) => prefetch === 1);
        const state = `${count(tasks.messages_ready)} ready, ${count(tasks.messages_unacknowledged)} unacked.`;
        return found
          ? { right: tasks.messages_unacknowledged > 0 && tasks.messages_ready === Number(answer), text: `A worker with a prefetch of 1 is connected: ${state}` }
          : { right: false, text: `No worker with a prefetch of 1 is connected: ${state} Start it, and check again.`, wait: true };
      },
    },
  ],
};

const SUBSCRIBERS = ["mail", "search", "archive"];

const PUBLISH_SUBSCRIBE = {
  id: "publish-subscribe",
  title: "Publish and subscribe",
  summary: "Send each message to all subscribers with a fanout exchange.",
  queues: [...SUBSCRIBERS, "late"],
  exchanges: ["news"],
  steps: [
    {
      id: "subscribe",
      title: "Bind three queues",
      text: () => html`<p>Each subscriber has a queue of its own. A <em>binding</em> connects the queue to an exchange. An exchange of the type <em>fanout</em> copies each message to all of its queues.</p>`,
      label: "Declare and bind",
      operations: (name) => [exchange(name("news"), "fanout"), ...SUBSCRIBERS.flatMap((short) => [queue(name(short)), binding(name("news"), name(short))])],
      check: ({ queues }) => ({ right: SUBSCRIBERS.every((short) => queues[short]), text: "The exchange has three queues." }),
    },
    {
      id: "publish",
      title: "Publish to all",
      text: () => html`<p>The message has the routing key ${code("mail")}, which is also the end of the name of a queue.</p>`,
      ask: { kind: "many", label: "Which queues get the message?", options: () => SUBSCRIBERS.map((short) => [short, short]), example: SUBSCRIBERS },
      label: "Publish",
      operations: (name) => [message(name("news"), "mail", "breaking news")],
      check: reached,
    },
    {
      id: "late",
      title: "A late subscriber",
      text: () => html`<p>An exchange keeps no messages: it passes them on to the queues that are bound at that time. A new subscriber binds its queue now.</p>`,
      ask: { kind: "one", label: "Does its queue get the earlier message?", options: () => YES_NO, example: "no" },
      label: "Bind the queue",
      operations: (name) => [queue(name("late")), binding(name("news"), name("late"))],
      check: ({ queues: { late } }, answer) => ({
        right: (late.messages_ready > 0) === (answer === "yes"),
        text: `The queue has ${plural(late.messages_ready, "message")}.`,
      }),
    },
    {
      id: "more",
      title: "Publish again",
      text: () => html`<p>Now four queues are bound.</p>`,
      ask: { kind: "many", label: "Which queues get the message?", options: () => [...SUBSCRIBERS, "late"].map((short) => [short, short]), example: [...SUBSCRIBERS, "late"] },
      label: "Publish",
      operations: (name) => [message(name("news"), "", "more news")],
      check: reached,
    },
  ],
};

const PATTERNS = { orders: "order.*", paid: "*.paid.#", europe: "#.eu", all: "#" };
const topicOptions = () => Object.entries(PATTERNS).map(([short, pattern]) => [short, `${short}: ${pattern}`]);

const predict = (id, key, example) => ({
  id,
  title: `Route ${key}`,
  text: () => html`<p>The message has the routing key ${code(key)}.</p>`,
  ask: { kind: "many", label: "Which queues get the message?", options: topicOptions, example },
  label: "Publish",
  operations: (name) => [message(name("events"), key, `the key is ${key}`)],
  check: reached,
});

const TOPICS = {
  id: "topics",
  title: "Topics",
  summary: "Let subscribers choose messages by patterns, and predict where messages go.",
  queues: Object.keys(PATTERNS),
  exchanges: ["events"],
  steps: [
    {
      id: "bind",
      title: "Bind queues by patterns",
      text: () => html`
        <p>With an exchange of the type <em>topic</em>, the key of a binding is a pattern for routing keys, which are words between dots: ${code("*")} stands for one word, ${code("#")} for any number of words, also for none.</p>
        <ul>${topicOptions().map(([short, text]) => html`<li key=${short}>${code(text)}</li>`)}</ul>
      `,
      label: "Declare and bind",
      operations: (name) => [exchange(name("events"), "topic"), ...Object.entries(PATTERNS).flatMap(([short, pattern]) => [queue(name(short)), binding(name("events"), name(short), pattern)])],
      check: ({ queues }) => ({ right: Object.keys(PATTERNS).every((short) => queues[short]), text: "The exchange has four queues." }),
    },
    predict("two-words", "order.paid", ["orders", "paid", "all"]),
    predict("three-words", "order.paid.eu", ["paid", "europe", "all"]),
    predict("one-word", "eu", ["europe", "all"]),
    {
      id: "own-key",
      title: "Find a routing key",
      text: () => html`<p>Write a routing key whose message reaches ${code("orders")}, ${code("europe")} and ${code("all")}, but not ${code("paid")}.</p>`,
      ask: { kind: "text", label: "Routing key", example: "order.eu" },
      label: "Publish",
      operations: (name, answer) => [message(name("events"), answer, `the key is ${answer}`)],
      check: (found) => reached(found, ["orders", "europe", "all"]),
    },
  ],
};

const DELAY = 2000;

const DEAD_LETTERS = {
  id: "dead-letters",
  title: "Dead letters and retries",
  summary: "Keep messages that cannot be processed, see why, and retry them after a delay.",
  queues: ["invoices", "dead", "pause"],
  exchanges: [],
  steps: [
    {
      id: "declare",
      title: "A queue for dead letters",
      text: (name) => html`<p>A message that is rejected, expires or does not fit into its queue is a <em>dead letter</em>. The arguments of ${code(name("invoices"))} send its dead letters by the default exchange to ${code(name("dead"))}.</p>`,
      label: "Declare and publish",
      operations: (name) => [
        queue(name("dead")),
        queue(name("invoices"), { "x-dead-letter-exchange": "", "x-dead-letter-routing-key": name("dead") }),
        message("", name("invoices"), "invoice 7"),
      ],
      check: ({ gained }) => ({ right: gained.invoices === 1, text: `${plural(gained.invoices, "invoice")} waits for a worker.` }),
    },
    {
      id: "reject",
      title: "Reject the message",
      text: () => html`<p>A worker gets the invoice, cannot process it, and rejects it without requeue.</p>`,
      ask: { kind: "one", label: "Where is the invoice afterwards?", options: () => [["invoices", "again in invoices"], ["dead", "in dead"], ["deleted", "deleted"]], example: "dead" },
      label: "Get and reject",
      operations: (name) => [take(name("invoices"), "reject")],
      check: ({ gained, results: [taken] }, answer) => {
        const [place = "deleted"] = Object.keys(gained).filter((short) => short !== "pause" && gained[short] > 0);
        return { right: taken.length > 0 && place === answer, text: taken.length ? `The invoice is ${place === "deleted" ? place : `in ${place}`}.` : "No invoice is ready." };
      },
    },
    {
      id: "trail",
      title: "Why it is there",
      text: () => html`<p>The broker writes into the header ${code("x-death")} why and from which queue a message came. The tab <em>Dead letters</em> of a queue groups messages by it.</p>`,
      ask: { kind: "one", label: "What is the reason in the header?", options: () => ["rejected", "expired", "maxlen", "delivery_limit"].map((reason) => [reason, reason]), example: "rejected" },
      label: "Look",
      operations: (name) => [look(name("dead"))],
      check: ({ results: [messages] }, answer) => {
        const reason = messages[0]?.properties.headers?.["x-death"]?.[0]?.reason;
        return { right: reason === answer, text: reason ? `The reason is ${reason}.` : "The queue has no dead letter." };
      },
    },
    {
      id: "retry",
      title: "Retry after a delay",
      text: (name) => html`<p>Messages in ${code(name("pause"))} expire after two seconds, and its dead letters go back to ${code(name("invoices"))}. No consumer takes them in between: the queue is a delay.</p>`,
      ask: { kind: "one", label: "Where is a message three seconds after its publish to pause?", options: () => [["pause", "in pause"], ["invoices", "in invoices"], ["dead", "in dead"]], example: "invoices" },
      label: "Publish to pause",
      within: 10,
      operations: (name) => [
        queue(name("pause"), { "x-message-ttl": DELAY, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": name("invoices") }),
        message("", name("pause"), "invoice 8"),
      ],
      check: ({ gained }, answer) => {
        const [place] = ["pause", "invoices", "dead"].filter((short) => gained[short] > 0);
        return { right: place === answer && place !== "pause", text: place ? `The message is in ${place}.` : "No queue has the message.", wait: !place || place === "pause" };
      },
    },
  ],
};

const EVENTS = [0, 1, 2, 3, 4].map((number) => `event ${number}`);

const STREAMS = {
  id: "streams",
  title: "Streams",
  summary: "Read messages again and again, from any offset.",
  queues: ["history"],
  exchanges: [],
  steps: [
    {
      id: "fill",
      title: "Publish to a stream",
      text: () => html`<p>A <em>stream</em> keeps its messages after they are read. Each has an <em>offset</em>: its number in the stream, from 0.</p>`,
      label: "Declare and publish",
      operations: (name) => [stream(name("history")), ...EVENTS.map((text) => message("", name("history"), text))],
      check: ({ gained }) => ({ right: gained.history === EVENTS.length, text: `The stream got ${plural(gained.history, "message")}.` }),
    },
    {
      id: "read",
      title: "Read from the beginning",
      text: () => html`<p>A reader starts at the offset 0 and reads two messages.</p>`,
      ask: { kind: "number", label: "How many messages does the stream have afterwards?", example: "5" },
      label: "Read",
      operations: (name) => [read(name("history"), 0, 2)],
      check: (found, answer) => {
        const outcome = ready(found, "history", answer);
        return { ...outcome, text: `The reader got: ${payloads(found.results[0])}. ${outcome.text}` };
      },
    },
    {
      id: "offset",
      title: "Read from an offset",
      text: () => html`<p>Another reader wants the fourth message, ${code(EVENTS[3])}, and the one after it.</p>`,
      ask: { kind: "number", label: "At which offset does it start?", example: "3" },
      label: "Read",
      operations: (name, answer) => [read(name("history"), Number(answer), 2)],
      check: ({ results: [messages] }) => ({ right: messages[0]?.payload === EVENTS[3], text: messages.length ? `The reader got: ${payloads(messages)}.` : "No message has this offset." }),
    },
    {
      id: "again",
      title: "Read everything again",
      text: () => html`<p>A third reader comes later and starts at the offset 0.</p>`,
      ask: { kind: "number", label: "How many messages does it get?", example: "5" },
      label: "Read",
      operations: (name) => [read(name("history"), 0, EVENTS.length)],
      check: ({ results: [messages] }, answer) => ({ right: messages.length === Number(answer), text: `The reader got: ${payloads(messages)}.` }),
    },
  ],
};

export const LESSONS = [FIRST_MESSAGE, WORK_QUEUE, PUBLISH_SUBSCRIBE, TOPICS, DEAD_LETTERS, STREAMS];

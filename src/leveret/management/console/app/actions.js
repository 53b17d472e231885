// Dialogs that change the broker.

import { EXCHANGE_ARGUMENTS, EXCHANGE_TYPES, POLICY_KEYS, QUEUE_ARGUMENTS, QUEUE_TYPES } from "./arguments.js";
import { call, get, path, withQuery } from "./api.js";
import { count, exchangeName, exchangePath, plural } from "./format.js";
import { html, useEffect, useState } from "./html.js";
import { refresh } from "./live.js";
import { go, route } from "./route.js";
import { ArgumentFields, argumentsIn, fieldsOf } from "./ui/arguments.js";
import { ChangeForm, confirmChange, openDialog } from "./ui/dialog.js";
import { Area, Check, Choice, parseObject, Text, useFields } from "./ui/form.js";
import { VhostChoice } from "./ui/list.js";
import { maySetPoliciesIn, mayUse, ownVhosts } from "./session.js";
import { toast } from "./ui/parts.js";
import { readRoles, rightNoun } from "./ui/roles.js";

/** Leaves the page of an object that no longer exists for another one, unless the user has left it. */
function leave(parts, target, query) {
  if (route.value.parts.join("\n") === parts.join("\n")) {
    go(target, query);
  }
}

/** Returns the vhost of the view, or one in which the user may make the change. */
function currentVhost(may = mayUse) {
  const vhost = route.value.query.vhost || "/";
  return may(vhost) ? vhost : (ownVhosts().find(may) ?? vhost);
}

const VhostField = ({ may = mayUse, state: [values, set] }) => html`
  <label class="field">
    <span>Vhost</span>
    <${VhostChoice} required may=${may} value=${values.vhost} onChange=${(name) => set("vhost", name)} />
  </label>
`;

// Queues

export const queuePath = ({ vhost, name }) => path("queues", vhost, name);

function DeclareQueue({ type }) {
  const state = useFields({ vhost: currentVhost(), name: "", type, durable: true, auto_delete: false, ...fieldsOf({}, []) });
  const [values] = state;
  const known = QUEUE_ARGUMENTS.filter(({ types }) => !types || types.includes(values.type));
  async function submit() {
    const given = argumentsIn(values, known, "Arguments");
    const body = {
      durable: values.durable,
      auto_delete: values.auto_delete,
      arguments: values.type === "classic" ? given : { "x-queue-type": values.type, ...given },
    };
    const warning = await call("PUT", queuePath(values), body);
    return `Declared queue '${values.name}'${warning ? `: ${warning}` : ""}`;
  }
  return html`
    <${ChangeForm} label="Declare queue" submit=${submit}>
      <div class="pair">
        <${VhostField} state=${state} />
        <${Choice} label="Type" name="type" state=${state} options=${QUEUE_TYPES.map(({ name }) => name)} />
      </div>
      <${Text} label="Name" name="name" state=${state} required maxlength="255" />
      <div class="row">
        <${Check} label="Durable" name="durable" state=${state} />
        <${Check} label="Auto-delete" name="auto_delete" state=${state} />
      </div>
      <${ArgumentFields} label="Arguments" noun="argument" state=${state} known=${known} needed=${QUEUE_TYPES.find(({ name }) => name === values.type).needs} example='{"x-note": "of ours"}' />
    <//>
  `;
}

/** Declares a queue; `type` is the type that the form begins with. */
export const declareQueue = (type) => openDialog(`Declare a ${type === "stream" ? "stream" : "queue"}`, () => html`<${DeclareQueue} type=${type} />`);

/** Returns a queue as it is now, which may differ from what the view shows. Shows the reason if it cannot be read. */
async function current(queue) {
  try {
    return await get(withQuery(queuePath(queue), { columns: "vhost,name,messages,messages_ready,consumers" }));
  } catch (error) {
    toast(error.message, "bad");
    return null;
  }
}

export async function purgeQueue({ vhost, name }) {
  const queue = await current({ vhost, name });
  if (!queue) {
    return;
  }
  confirmChange({
    title: "Purge queue",
    text: html`Removes ${plural(queue.messages_ready, "ready message")} from <b>${queue.name}</b>. Unacked messages stay. The queue itself stays.`,
    label: "Purge messages",
    change: () => call("DELETE", `${queuePath(queue)}/contents`),
    done: `Purged queue '${queue.name}'`,
  });
}

export async function deleteQueue({ vhost, name }) {
  const queue = await current({ vhost, name });
  if (!queue) {
    return;
  }
  confirmChange({
    title: "Delete queue",
    text: html`
      Deletes <b>${queue.name}</b> with its ${plural(queue.messages, "message")} and its bindings.
      ${queue.consumers > 0 && html` Its ${plural(queue.consumers, "consumer")} will be cancelled.`}
    `,
    label: "Delete queue",
    change: async () => {
      await call("DELETE", queuePath(queue));
      leave(["queues", vhost, name], ["queues"]);
    },
    done: `Deleted queue '${queue.name}'`,
  });
}

/** Stops deliveries from a queue, or starts them again. */
export function pauseQueue(queue) {
  const target = path("leveret", "queues", queue.vhost, queue.name);
  if (queue.state === "paused") {
    call("POST", `${target}/resume`).then(
      () => {
        toast(`Resumed queue '${queue.name}'`);
        refresh();
      },
      (error) => toast(error.message, "bad"),
    );
    return;
  }
  confirmChange({
    title: "Pause queue",
    text: html`Stops deliveries from <b>${queue.name}</b> until it is resumed, also after a restart. Publishes continue.`,
    label: "Pause queue",
    change: () => call("POST", `${target}/pause`),
    done: `Paused queue '${queue.name}'`,
  });
}

/** Cancels a consumer of any client. */
export function cancelConsumer({ queue, consumer_tag: tag, channel_details: channel }) {
  confirmChange({
    title: "Cancel consumer",
    text: html`Cancels the consumer <b>${tag}</b> of queue <b>${queue.name}</b>. Its client keeps its unacked messages.`,
    label: "Cancel consumer",
    change: () => call("DELETE", withQuery(path("leveret", "queues", queue.vhost, queue.name, "consumers", tag), { connection: channel?.connection_name, channel: channel?.number })),
    done: `Cancelled consumer '${tag}'`,
  });
}

// Shovels

const shovelPath = ({ vhost, name }) => path("shovels", "vhost", vhost, name);

export function restartShovel(shovel) {
  confirmChange({
    title: "Restart shovel",
    text: html`Closes both connections of <b>${shovel.name}</b>, and starts it again. Messages that are not confirmed within half a second arrive twice.`,
    label: "Restart shovel",
    change: () => call("DELETE", `${shovelPath(shovel)}/restart`),
    done: `Restarted shovel '${shovel.name}'`,
  });
}

export function deleteShovel(shovel) {
  confirmChange({
    title: "Delete shovel",
    text: html`Ends <b>${shovel.name}</b>, and deletes its parameter. The messages that it has not moved stay at its source.`,
    label: "Delete shovel",
    change: () => call("DELETE", shovelPath(shovel)),
    done: `Deleted shovel '${shovel.name}'`,
  });
}

// Number of requests at a time of a bulk change.
const PARALLEL = 4;
const MAX_LISTED = 200;

const isKept = (queue, { empty, unused }) => (empty && queue.messages > 0) || (unused && queue.consumers > 0);
const switchQueue = (verb) => (queue) => call("POST", path("leveret", "queues", queue.vhost, queue.name, verb));

/** Changes of many queues: the role and the permission that they need, which queues they `skip`, the key of the `messages` that are affected, and the call for one queue. */
const BULK = {
  delete: {
    verb: "Delete", done: "Deleted", needs: ["administrator", "configure"], skip: isKept, messages: "messages",
    change: (queue, { empty, unused }) => call("DELETE", withQuery(queuePath(queue), { "if-empty": empty, "if-unused": unused })),
  },
  purge: {
    verb: "Purge", done: "Purged", needs: ["operator", "read"], skip: (queue) => queue.type === "stream" || queue.messages_ready === 0, messages: "messages_ready",
    change: (queue) => call("DELETE", `${queuePath(queue)}/contents`),
  },
  pause: { verb: "Pause", done: "Paused", needs: ["operator", "configure"], skip: (queue) => queue.state === "paused", messages: "messages", change: switchQueue("pause") },
  resume: { verb: "Resume", done: "Resumed", needs: ["operator", "configure"], skip: (queue) => queue.state !== "paused", messages: "messages", change: switchQueue("resume") },
};
const BULK_CHANGES = [
  ["pause", "Pause: stop deliveries"],
  ["resume", "Resume deliveries"],
  ["purge", "Purge: remove ready messages"],
];

/** The columns of the list that a bulk change reads. */
export const BULK_COLUMNS = "name,vhost,type,state,messages,messages_ready,consumers,exclusive";

/** Lists the queues that a deletion would remove, and removes them if the user confirms. */
export function deleteQueues(read) {
  openDialog("Delete queues", () => html`<${BulkChange} read=${read} action="delete" />`);
}

/** Lists the queues that would be paused, resumed or purged, and does that if the user confirms. */
export function changeQueues(read) {
  openDialog("Change queues", () => html`<${BulkChange} read=${read} action="pause" />`);
}

/** Reads the listed queues with what the user may do with each: `may(role, permission)`. */
async function readAllowed(read) {
  const found = [];
  for (const [vhost, queues] of Map.groupBy(await read(), (queue) => queue.vhost)) {
    const may = await readRoles(vhost, queues.map(({ name }) => name));
    found.push(...queues.map((queue) => ({ ...queue, may: (...needs) => may(queue.name, ...needs) })));
  }
  return found;
}

const bulkKey = (queue) => `${queue.vhost}\n${queue.name}`;

function BulkChange({ read, action }) {
  const state = useFields({ action, empty: true, unused: true });
  const [values] = state;
  const [queues, setQueues] = useState(null);
  const [spared, setSpared] = useState(new Set()); // the queues that the user has excluded
  const [progress, setProgress] = useState(null);
  useEffect(() => {
    readAllowed(read).then(setQueues, (error) => setProgress({ failures: [error.message] }));
  }, []);
  const { verb, done: past, needs, skip, messages: affected, change } = BULK[values.action];
  const wanted = (queues ?? []).filter((queue) => !queue.exclusive && !skip(queue, values));
  const candidates = wanted.filter((queue) => queue.may(...needs));
  const refused = wanted.length - candidates.length;
  const chosen = candidates.filter((queue) => !spared.has(bulkKey(queue)));
  const messages = chosen.reduce((sum, queue) => sum + queue[affected], 0);
  const toggle = (queue) => {
    const next = new Set(spared);
    if (!next.delete(bulkKey(queue))) {
      next.add(bulkKey(queue));
    }
    setSpared(next);
  };

  async function execute() {
    const waiting = [...chosen];
    const failures = [];
    let done = 0;
    async function work() {
      for (let queue = waiting.shift(); queue; queue = waiting.shift()) {
        try {
          await change(queue, values);
          done += 1;
        } catch (error) {
          failures.push(`${queue.name}: ${error.message}`);
        }
        setProgress({ done, failures: [...failures] });
      }
    }
    await Promise.all(Array.from({ length: PARALLEL }, work));
    if (failures.length) {
      setQueues(await readAllowed(read));
      throw new Error(`${past} ${plural(done, "queue")}; ${plural(failures.length, "failure")}: ${failures.slice(0, 5).join("; ")}`);
    }
    return `${past} ${plural(done, "queue")}`;
  }
  if (queues === null) {
    return html`<p role="status">${progress?.failures[0] ?? "Reading the list…"}</p>`;
  }
  return html`
    <${ChangeForm} label=${`${verb} ${plural(chosen.length, "queue")}`} tone="danger" submit=${execute} disabled=${chosen.length === 0}>
      ${action !== "delete" && html`<${Choice} label="Change" name="action" state=${state} options=${BULK_CHANGES} />`}
      <p>
        Dry run: <b>${plural(chosen.length, "queue")}</b> of ${count(queues.length)} would be ${past.toLowerCase()},
        with <b>${plural(messages, "message")}</b>.
        ${refused > 0 && ` Your user lacks the ${rightNoun()} for ${plural(refused, "queue")} more.`}
      </p>
      ${action === "delete" &&
      html`
        <div class="row">
          <${Check} label="Keep queues with messages" name="empty" state=${state} />
          <${Check} label="Keep queues with consumers" name="unused" state=${state} />
        </div>
      `}
      <ul class="bulk" tabindex="0" aria-label=${`Queues that would be ${past.toLowerCase()}`}>
        ${candidates.slice(0, MAX_LISTED).map(
          (queue) => html`
            <li key=${bulkKey(queue)}>
              <label class="check">
                <input type="checkbox" checked=${!spared.has(bulkKey(queue))} onChange=${() => toggle(queue)} />
                <span>${queue.vhost} <b>${queue.name}</b> ${plural(queue[affected], "message")}</span>
              </label>
            </li>
          `,
        )}
        ${candidates.length > MAX_LISTED && html`<li key="">… and ${count(candidates.length - MAX_LISTED)} more</li>`}
      </ul>
      ${progress && html`<p role="status">${past} ${count(progress.done)} of ${count(chosen.length)}</p>`}
    <//>
  `;
}

// Exchanges and bindings

function DeclareExchange() {
  const state = useFields({ vhost: currentVhost(), name: "", type: "direct", durable: true, auto_delete: false, internal: false, ...fieldsOf({}, []) });
  const [values] = state;
  async function submit() {
    const { vhost, name, type, durable, auto_delete, internal } = values;
    const body = { type, durable, auto_delete, internal, arguments: argumentsIn(values, EXCHANGE_ARGUMENTS, "Arguments") };
    const warning = await call("PUT", path("exchanges", vhost, name), body);
    return `Declared exchange '${name}'${warning ? `: ${warning}` : ""}`;
  }
  return html`
    <${ChangeForm} label="Declare exchange" submit=${submit}>
      <div class="pair">
        <${VhostField} state=${state} />
        <${Choice} label="Type" name="type" state=${state} options=${EXCHANGE_TYPES} />
      </div>
      <${Text} label="Name" name="name" state=${state} required maxlength="255" />
      <div class="row">
        <${Check} label="Durable" name="durable" state=${state} />
        <${Check} label="Auto-delete" name="auto_delete" state=${state} />
        <${Check} label="Internal" name="internal" state=${state} />
      </div>
      <${ArgumentFields} label="Arguments" noun="argument" state=${state} known=${EXCHANGE_ARGUMENTS} example='{"x-note": "of ours"}' />
    <//>
  `;
}

export const declareExchange = () => openDialog("Declare an exchange", DeclareExchange);

export function deleteExchange({ vhost, name }) {
  confirmChange({
    title: "Delete exchange",
    text: html`Deletes <b>${name}</b> and its bindings. Publishing to it then fails.`,
    label: "Delete exchange",
    change: async () => {
      await call("DELETE", path("exchanges", vhost, name));
      leave(["exchanges", vhost, name], ["exchanges"]);
    },
    done: `Deleted exchange '${name}'`,
  });
}

/** Adds a binding; `fixed` has what the view knows: `{vhost, source}` or `{vhost, destination}`. */
export function addBinding(fixed) {
  openDialog("Add a binding", () => html`<${AddBinding} ...${fixed} />`);
}

function AddBinding({ vhost, source, destination }) {
  const state = useFields({ source: source ?? "", kind: "q", destination: destination ?? "", routing_key: "", arguments: "" });
  const [values] = state;
  async function submit() {
    const target = path("bindings", vhost, "e", values.source, values.kind, values.destination);
    await call("POST", target, { routing_key: values.routing_key, arguments: parseObject(values.arguments, "Arguments") });
    return `Bound '${values.destination}' to '${values.source}'`;
  }
  return html`
    <${ChangeForm} label="Add binding" submit=${submit}>
      ${source === undefined && html`<${Text} label="From exchange" name="source" state=${state} required />`}
      ${destination === undefined &&
      html`
        <div class="pair">
          <${Choice} label="To" name="kind" state=${state} options=${[["q", "queue"], ["e", "exchange"]]} />
          <${Text} label="Name" name="destination" state=${state} required />
        </div>
      `}
      <${Text} label="Routing key" name="routing_key" state=${state} />
      <${Area} label="Arguments" name="arguments" state=${state} rows="2" hint='JSON, for a headers exchange for example {"x-match": "all", "format": "pdf"}' />
    <//>
  `;
}

export function removeBinding(binding) {
  const kind = binding.destination_type === "queue" ? "q" : "e";
  confirmChange({
    title: "Remove binding",
    text: html`Messages with the routing key <code>${binding.routing_key || "(empty)"}</code> no longer go from <b>${exchangeName(binding.source)}</b> to <b>${binding.destination}</b>.`,
    label: "Remove binding",
    change: () =>
      call("DELETE", path("bindings", binding.vhost, "e", exchangePath(binding.source), kind, binding.destination, binding.properties_key)),
    done: "Removed the binding",
  });
}

// Connections

export function closeConnection(connection) {
  openDialog("Close connection", () => html`<${CloseConnection} connection=${connection} />`);
}

function CloseConnection({ connection }) {
  const state = useFields({ reason: "" });
  async function submit() {
    const reason = state[0].reason.trim();
    await call("DELETE", path("connections", connection.name), undefined, { headers: reason ? { "x-reason": reason } : {} });
    leave(["connections", connection.name], ["connections"]);
    return "Closed the connection";
  }
  return html`
    <${ChangeForm} label="Close connection" tone="danger" submit=${submit}>
      <p>Closes <b>${connection.user_provided_name || connection.name}</b>. Its unacked messages are requeued; clients usually reconnect.</p>
      <${Text} label="Reason, which the client receives" name="reason" state=${state} pattern="[\\x20-\\x7e]*" maxlength="200" />
    <//>
  `;
}

// Links, transactions, pipelines

/** Executes an operation of the control socket. */
const operate = (name, fields) => call("POST", path("leveret", "operations", name), fields);

const linkIdentity = ({ name, vhost, user, container, role }) => ({ name, vhost, user, container, role });

export function releaseLink(row) {
  confirmChange({
    title: "Release link",
    text: html`Requeues the ${plural(row.unsettled, "unsettled message")} of the suspended link <b>${row.name}</b>. Its client may have processed some of them.`,
    label: "Release messages",
    change: () => operate("links.release", linkIdentity(row)),
    done: `Released link '${row.name}'`,
  });
}

export function deleteLink(row) {
  confirmChange({
    title: "Delete link",
    text: html`Deletes the link <b>${row.name}</b> with its subscription. An attached link is detached with an error.`,
    label: "Delete link",
    change: async () => {
      await operate("links.delete", linkIdentity(row));
      leave(["links", row.vhost, row.name], ["links"]);
    },
    done: `Deleted link '${row.name}'`,
  });
}

const BRANCH_CHANGES = {
  commit: ["Commit branch", "Commits", "Committed", "Commit decides for its coordinator, which may decide otherwise for other branches."],
  rollback: ["Roll back branch", "Rolls back", "Rolled back", "Its publishes are dropped, and its messages are requeued."],
  forget: ["Forget branch", "Forgets the outcome of", "Forgot", "A coordinator that asks for it later is refused."],
};

/** Resolves a branch of a distributed transaction: "commit", "rollback" or "forget". */
export function resolveBranch(change, { branch, vhost }) {
  const [label, verb, done, text] = BRANCH_CHANGES[change];
  confirmChange({
    title: label,
    text: html`${verb} <b>${branch}</b>. ${text}`,
    label,
    change: () => operate(`dtx.${change}`, { name: branch, vhost }),
    done: `${done} branch '${branch}'`,
  });
}

export function releaseLease(row) {
  confirmChange({
    title: "Release lease",
    text: html`Requeues the ${plural(row.messages, "message")} that <b>${row.lease}</b> holds of <b>${row.queue}</b>. Its reader may have processed some of them.`,
    label: "Release lease",
    change: async () => {
      await operate("leases.release", { name: row.queue, vhost: row.vhost, lease: row.lease });
      leave(["pipelines", "lease", row.vhost, row.queue, row.lease], ["pipelines"], { tab: "leases" });
    },
    done: `Released lease '${row.lease}'`,
  });
}

export function abortSinkTransaction(row) {
  confirmChange({
    title: "Abort transaction",
    text: html`Drops the ${plural(row.messages, "message")} of a transaction of the sink <b>${row.app}</b>. A running sink fails, and publishes the batch again.`,
    label: "Abort transaction",
    change: () => operate("stages.discard", { stages: [row.stage], vhost: row.vhost }),
    done: `Aborted a transaction of '${row.app}'`,
  });
}

// Vhosts, users, permissions

function AddVhost() {
  const state = useFields({ name: "", description: "" });
  const [{ name, description }] = state;
  async function submit() {
    await call("PUT", path("vhosts", name), { description });
    return `Added vhost '${name}'`;
  }
  return html`
    <${ChangeForm} label="Add vhost" submit=${submit}>
      <${Text} label="Name" name="name" state=${state} required />
      <${Text} label="Description" name="description" state=${state} />
    <//>
  `;
}

export const addVhost = () => openDialog("Add a vhost", AddVhost);

export function deleteVhost({ name }) {
  openDialog("Delete vhost", () => html`<${DeleteVhost} name=${name} />`);
}

function DeleteVhost({ name }) {
  const state = useFields({ repeat: "" });
  async function submit() {
    if (state[0].repeat !== name) {
      throw new Error(`The name differs; expected '${name}'`);
    }
    await call("DELETE", path("vhosts", name));
    return `Deleted vhost '${name}'`;
  }
  return html`
    <${ChangeForm} label="Delete vhost" tone="danger" submit=${submit}>
      <p>Deletes <b>${name}</b> with all of its queues, exchanges and messages, and closes its connections.</p>
      <${Text} label="Repeat the name" name="repeat" state=${state} required />
    <//>
  `;
}

/** Switches the firehose of a vhost. */
export function traceVhost({ name, tracing }) {
  const change = () => call("PUT", path("vhosts", name), { tracing: !tracing });
  confirmChange({
    title: tracing ? "Stop tracing" : "Trace messages",
    text: tracing
      ? html`No more copies of messages in <b>${name}</b> go to the exchange <b>amq.rabbitmq.trace</b>.`
      : html`Copies of all messages that are published or delivered in <b>${name}</b> go to the exchange <b>amq.rabbitmq.trace</b>, until you stop tracing or the broker restarts. Tracing slows the vhost down.`,
    label: tracing ? "Stop tracing" : "Trace messages",
    change,
    done: tracing ? `Stopped tracing vhost '${name}'` : `Tracing vhost '${name}'`,
  });
}

export const TAGS = ["administrator", "monitoring", "policymaker", "management"];

/** Adds a user, or changes tags and password of an existing one. */
export function editUser(user) {
  openDialog(user ? `Change user '${user.name}'` : "Add a user", () => html`<${EditUser} user=${user} />`);
}

function EditUser({ user }) {
  const state = useFields({ name: user?.name ?? "", password: "", tags: (user?.tags ?? []).join(", ") });
  const [values] = state;
  async function submit() {
    const body = { tags: values.tags.split(",").map((tag) => tag.trim()).filter(Boolean) };
    if (values.password) {
      body.password = values.password;
    }
    await call("PUT", path("users", values.name), body);
    return user ? `Changed user '${values.name}'` : `Added user '${values.name}'`;
  }
  return html`
    <${ChangeForm} label=${user ? "Change user" : "Add user"} submit=${submit}>
      ${!user && html`<${Text} label="Name" name="name" state=${state} required />`}
      <${Text} label=${user ? "New password (empty: unchanged)" : "Password"} name="password" type="password" autocomplete="new-password" state=${state} />
      <${Text} label="Tags" name="tags" state=${state} hint=${`Separated by commas: ${TAGS.join(", ")}`} />
    <//>
  `;
}

export function deleteUser({ name }) {
  confirmChange({
    title: "Delete user",
    text: html`Deletes <b>${name}</b> with its permissions.`,
    label: "Delete user",
    change: async () => {
      await call("DELETE", path("users", name));
      leave(["users", name], ["users"]);
    },
    done: `Deleted user '${name}'`,
  });
}

/** Sets the permissions of a user in a vhost; `known` has the current ones or a part of the address. */
export function editPermission(known = {}) {
  openDialog("Set permissions", () => html`<${EditPermission} known=${known} />`);
}

function EditPermission({ known }) {
  const state = useFields({ user: "", vhost: "/", configure: ".*", write: ".*", read: ".*", ...known });
  const [{ user, vhost, configure, write, read }] = state;
  async function submit() {
    await call("PUT", path("permissions", vhost, user), { configure, write, read });
    return `Set the permissions of '${user}' in '${vhost}'`;
  }
  return html`
    <${ChangeForm} label="Set permissions" submit=${submit}>
      <div class="pair">
        <${Text} label="User" name="user" state=${state} required />
        <${VhostField} state=${state} />
      </div>
      <${Text} label="Configure: names that the user may declare and delete" name="configure" state=${state} />
      <${Text} label="Write: names that the user may publish to" name="write" state=${state} />
      <${Text} label="Read: names that the user may consume from" name="read" state=${state} />
      <p class="small muted">RE2 expressions. An empty one matches no name; <code>.*</code> matches all.</p>
    <//>
  `;
}

export function clearPermission({ user, vhost }) {
  confirmChange({
    title: "Clear permissions",
    text: html`<b>${user}</b> can no longer connect to <b>${vhost}</b>.`,
    label: "Clear permissions",
    change: () => call("DELETE", path("permissions", vhost, user)),
    done: `Cleared the permissions of '${user}' in '${vhost}'`,
  });
}

/** Changes the roles of a user as they are now, which may not be those on the page. */
async function changeRoles(user, change) {
  const target = path("leveret", "roles", user);
  const current = (await get(target)).map(({ role, vhosts, names }) => ({ role, vhosts, names }));
  await call("PUT", target, { grants: change(current) });
}

/** Grants a role to a user, in addition to the others. */
export function grantRole(user, grants) {
  openDialog("Grant role", () => html`<${GrantRole} user=${user} grants=${grants} />`);
}

const ROLES = [
  ["observer", "observer: sees messages without their payloads"],
  ["viewer", "viewer: also reads payloads"],
  ["operator", "operator: also purges, pauses, publishes, moves and deletes messages"],
  ["policymaker", "policymaker: also sets policies and parameters"],
  ["administrator", "administrator: also declares, binds and deletes"],
];

function GrantRole({ user, grants }) {
  const state = useFields({ role: "viewer", vhosts: ".*", names: ".*" });
  const [added] = state;
  async function submit() {
    await changeRoles(user, (current) => [...current, added]);
    return `Granted a role to '${user}'`;
  }
  return html`
    <${ChangeForm} label="Grant role" submit=${submit}>
      <${Choice} label="Role" name="role" state=${state} options=${ROLES} />
      <${Text} label="Vhosts" name="vhosts" state=${state} required maxlength="1024" />
      <${Text} label="Names of queues and exchanges" name="names" state=${state} required maxlength="1024" />
      <p class="small muted">
        RE2 expressions; <code>.*</code> matches all. ${grants.length === 0 && "With the first role, permissions no longer decide what the user may do here. Over AMQP they still do."}
      </p>
    <//>
  `;
}

export function revokeRole(user, revoked, grants) {
  const isOther = ({ role, vhosts, names }) => role !== revoked.role || vhosts !== revoked.vhosts || names !== revoked.names;
  confirmChange({
    title: "Revoke role",
    text: html`Revokes the role ${revoked.role} of <b>${user}</b>. ${!grants.some(isOther) && "Without roles, permissions decide what the user may do here."}`,
    label: "Revoke role",
    change: () => changeRoles(user, (current) => current.filter(isOther)),
    done: `Revoked a role of '${user}'`,
  });
}

/** Sets the topic permissions of a user for an exchange; `known` has the current ones or a part of the address. */
export function editTopicPermission(known = {}) {
  openDialog("Set topic permissions", () => html`<${EditTopicPermission} known=${known} />`);
}

function EditTopicPermission({ known }) {
  const state = useFields({ user: "", vhost: "/", exchange: "amq.topic", write: ".*", read: ".*", ...known });
  const [{ user, vhost, exchange, write, read }] = state;
  async function submit() {
    await call("PUT", path("topic-permissions", vhost, user), { exchange, write, read });
    return `Set the topic permissions of '${user}' for '${exchange}' in '${vhost}'`;
  }
  return html`
    <${ChangeForm} label="Set topic permissions" submit=${submit}>
      <div class="pair">
        <${Text} label="User" name="user" state=${state} required />
        <${VhostField} state=${state} />
      </div>
      <${Text} label="Topic exchange" name="exchange" state=${state} required maxlength="255" />
      <${Text} label="Write: routing keys that the user may publish with" name="write" state=${state} />
      <${Text} label="Read: binding keys that the user may use" name="read" state=${state} />
      <p class="small muted">
        RE2 expressions; <code>{username}</code>, <code>{vhost}</code> and <code>{client_id}</code> stand for those of the connection.
        Without topic permissions, a user may use all keys that the permissions allow.
      </p>
    <//>
  `;
}

export function clearTopicPermission({ user, vhost, exchange }) {
  confirmChange({
    title: "Clear topic permissions",
    text: html`<b>${user}</b> may use all routing keys with <b>${exchangeName(exchange)}</b> in <b>${vhost}</b> again, as far as the permissions allow.`,
    label: "Clear topic permissions",
    change: () => call("DELETE", path("topic-permissions", vhost, user, exchangePath(exchange))),
    done: `Cleared the topic permissions of '${user}' for '${exchangeName(exchange)}'`,
  });
}

// Limits

const LIMITS = { user: ["max-connections", "max-channels"], vhost: ["max-connections", "max-queues"] };

/** Sets or clears a limit of a user or a vhost; `kind` is "user" or "vhost". */
export function editLimit(kind, name) {
  openDialog(`Set a limit of '${name}'`, () => html`<${EditLimit} ...${{ kind, name }} />`);
}

function EditLimit({ kind, name }) {
  const state = useFields({ limit: LIMITS[kind][0], value: "" });
  const [{ limit, value }] = state;
  async function submit() {
    const target = path(`${kind}-limits`, name, limit);
    if (value === "") {
      await call("DELETE", target);
      return `Cleared the limit '${limit}' of '${name}'`;
    }
    await call("PUT", target, { value: Number(value) });
    return `Set the limit '${limit}' of '${name}'`;
  }
  return html`
    <${ChangeForm} label="Set limit" submit=${submit}>
      <div class="pair">
        <${Choice} label="Limit" name="limit" state=${state} options=${LIMITS[kind]} />
        <${Text} label="Value (empty: no limit)" name="value" type="number" min="0" state=${state} />
      </div>
    <//>
  `;
}

// Policies

const APPLY_TO = ["queues", "classic_queues", "quorum_queues", "streams", "exchanges", "all"];

/** Adds or changes a policy; `collection` is "policies" or "operator-policies". */
export function editPolicy(collection, policy) {
  openDialog(policy ? `Change policy '${policy.name}'` : "Add a policy", () => html`<${EditPolicy} ...${{ collection, policy }} />`);
}

function EditPolicy({ collection, policy }) {
  const known = collection === "policies" ? POLICY_KEYS : POLICY_KEYS.filter(({ operator }) => operator);
  const state = useFields({
    vhost: policy?.vhost ?? currentVhost(maySetPoliciesIn),
    name: policy?.name ?? "",
    pattern: policy?.pattern ?? "",
    "apply-to": policy?.["apply-to"] ?? "queues",
    priority: String(policy?.priority ?? 0),
    ...fieldsOf(policy?.definition ?? {}, known),
  });
  const [values] = state;
  const [matching, setMatching] = useState(null);
  useEffect(() => {
    setMatching(null);
    if (!values.pattern || values["apply-to"] === "exchanges") {
      return undefined;
    }
    const controller = new AbortController();
    const timer = setTimeout(async () => {
      try {
        const query = { page: 1, page_size: 1, name: values.pattern, use_regex: "true", columns: "name" };
        setMatching((await get(withQuery(path("queues", values.vhost), query), { signal: controller.signal })).filtered_count);
      } catch {
        // Aborted by the next key, or an incomplete expression: nothing is known.
      }
    }, 300);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [values.pattern, values.vhost, values["apply-to"]]);
  async function submit() {
    const body = {
      pattern: values.pattern,
      "apply-to": values["apply-to"],
      priority: Number(values.priority),
      definition: argumentsIn(values, known, "Definition"),
    };
    await call("PUT", path(collection, values.vhost, values.name), body);
    return `Set policy '${values.name}'`;
  }
  return html`
    <${ChangeForm} label="Set policy" submit=${submit}>
      ${!policy && html`<div class="pair"><${VhostField} may=${maySetPoliciesIn} state=${state} /><${Text} label="Name" name="name" state=${state} required /></div>`}
      <${Text} label="Pattern of names" name="pattern" state=${state} required hint=${matching === null ? "An RE2 expression" : `Matches ${plural(matching, "queue")} now`} />
      <div class="pair">
        <${Choice} label="Applies to" name="apply-to" state=${state} options=${APPLY_TO} />
        <${Text} label="Priority" name="priority" type="number" state=${state} required />
      </div>
      <${ArgumentFields} label="Definition" noun="key" state=${state} known=${known} example='{"queue-mode": "lazy"}' />
    <//>
  `;
}

export function deletePolicy(collection, { vhost, name }) {
  confirmChange({
    title: "Delete policy",
    text: html`Deletes <b>${name}</b>. Queues and exchanges that it applied to use the next matching policy, or none.`,
    label: "Delete policy",
    change: () => call("DELETE", path(collection, vhost, name)),
    done: `Deleted policy '${name}'`,
  });
}


// One queue: charts, a diagnosis, consumers, bindings and messages.

import { addBinding, cancelConsumer, deleteQueue, pauseQueue, purgeQueue, queuePath } from "../actions.js";
import { path, withQuery } from "../api.js";
import { useGrowingAge, useResource } from "../data.js";
import { bytes, count, duration, growth, rate, short, time } from "../format.js";
import { html } from "../html.js";
import { link, route, setQuery } from "../route.js";
import { BindingTable } from "../ui/bindings.js";
import { Chart, historyParameters, MESSAGE_SERIES, RangeChoice, RATE_SERIES, useKept, useRange } from "../ui/chart.js";
import { diagnose, diagnoseConsumers } from "../diagnosis.js";
import { MessageBrowser } from "../ui/browser.js";
import { copyAs } from "../ui/copy.js";
import { DeadLetters } from "../ui/dead_letters.js";
import { AddMarkButton, EventsPanel, useEvents } from "../ui/marks.js";
import { share } from "../ui/share.js";
import { FilterField } from "../ui/list.js";
import { Badge, deduplicationOf, Entries, Facts, Failure, Features, Findings, Panel, Stats, Tabs, Title } from "../ui/parts.js";
import { PublishForm } from "../ui/publish.js";
import { placePath } from "../ui/relocate.js";
import { Allowed, useRole } from "../ui/roles.js";
import { isMonitor, mayAdminister } from "../session.js";
import { Star } from "../ui/star.js";
import { SmallTable } from "../ui/table.js";
import { LiveTail } from "../ui/tail.js";
import { CONSUMER_COLUMNS, consumerKey } from "./consumers.js";
import { Playground } from "./playground.js";
import { State } from "./queues.js";
import { Segments } from "./segments.js";

const TABS = [
  ["state", "State"],
  ["messages", "Messages"],
  ["live", "Live"],
  ["dead-letters", "Dead letters"],
  ["publish", "Publish"],
  ["playground", "Playground"],
  ["bindings", "Bindings"],
  ["consumers", "Consumers"],
];
// What tabs need: `may` is for the queue, and `mayPublish` for the default exchange.
const mayBrowse = (may) => may("observer", "read", { changes: false });
const NEEDED = {
  messages: mayBrowse,
  "dead-letters": mayBrowse,
  live: (may) => may("viewer", "read", { changes: false }),
  publish: (_, mayPublish) => mayPublish("operator", "write"),
  playground: (may, mayPublish) => may("operator", "read") && mayPublish("operator", "write"),
};

export function QueueView({ parts }) {
  const [, vhost, name] = parts;
  const { tab = "state" } = route.value.query;
  const range = useRange();
  const may = useRole({ vhost, name });
  const mayPublish = useRole({ vhost, name: "" });
  const { value: queue, error } = useResource(withQuery(queuePath({ vhost, name }), historyParameters(range)));
  const crumb = html`<a href=${link(["queues"])}>Queues</a> › <a href=${link(["queues"], { vhost })} title=${vhost}>${vhost}</a>`;
  const star = html`<${Star} kind="queues" vhost=${vhost} name=${name} />`;
  if (!queue) {
    return html`<${Title} crumb=${crumb} title=${name} star=${star} /><${Failure} error=${error} />`;
  }
  const isAllowed = (id) => !NEEDED[id] || NEEDED[id](may, mayPublish);
  const tabs = TABS.filter(([id]) => isAllowed(id));
  const streamTabs = [...tabs.filter(([id]) => id !== "dead-letters"), ...(isMonitor() ? [["segments", "Segments"]] : [])];
  const Tab =
    { messages: Messages, live: Live, "dead-letters": DeadLetters, publish: Publish, playground: Playground, bindings: Bindings, consumers: Consumers, segments: Segments }[tab] ?? StateTab;
  return html`
    <${Title}
      crumb=${crumb}
      star=${star}
      title=${name}
      badges=${html`
        <${State} queue=${queue} />
        <${Badge}>${queue.type}<//>
        <${Features} object=${queue} />
        ${queue.policy && html`<${Badge}>policy ${queue.policy}<//>`}
      `}
      actions=${html`
        <button onClick=${() => pauseQueue(queue)} disabled=${!may("operator", "configure")}>${queue.state === "paused" ? "Resume" : "Pause…"}</button>
        <button onClick=${() => purgeQueue(queue)} disabled=${queue.type === "stream" || !may("operator", "read")}>Purge…</button>
        <button onClick=${() => copyAs("queue", queue)}>Copy as…</button>
        <button onClick=${() => share(queue)}>Share…</button>
        <button class="danger" onClick=${() => deleteQueue(queue)} disabled=${!may("administrator", "configure")}>Delete…</button>
      `}
    />
    <${Failure} error=${error} />
    <${Tabs} label="Parts of the queue" parts=${parts} items=${queue.type === "stream" ? streamTabs : tabs} current=${tab} />
    <${Allowed} may=${may} allowed=${isAllowed(tab)}><${Tab} queue=${queue} /><//>
  `;
}

const idOf = ({ vhost, name }) => `${vhost}\n${name}`;

/** Returns the queue that the URL asks to compare with: `{queue, kept, error}`. Without `compare_vhost`, it is in the same vhost. */
function useCompared(queue, range) {
  const { compare: name, compare_vhost: vhost = queue.vhost } = route.value.query;
  const { value, error } = useResource(name ? withQuery(queuePath({ vhost, name }), historyParameters(range)) : null);
  const kept = useKept(name ? { vhost, queue: name } : null, range);
  return { queue: value, kept, error };
}

/** The other queue in a chart, if there is one. */
const otherOf = ({ queue, kept }, chart) => (queue ? { id: `${idOf(queue)}\n${chart}`, name: queue.name, object: queue, kept } : null);

const CompareField = () => html`
  <${FilterField} aria-label="Compare with queue" placeholder="Compare with queue" maxlength="255" value=${route.value.query.compare ?? ""} onChoice=${(name) => setQuery({ compare: name, compare_vhost: "" })} />
`;

/** What is said of the ready messages, beside their number. */
function readyNote(waiting, oldest) {
  const notes = [waiting?.delayed && `including ${count(waiting.delayed)} delayed`, oldest && `oldest ${duration(1000 * oldest)}`];
  return notes.filter(Boolean).join(", ");
}

function StateTab({ queue }) {
  const id = idOf(queue);
  const range = useRange();
  const kept = useKept({ vhost: queue.vhost, queue: queue.name }, range);
  const compared = useCompared(queue, range);
  const events = useEvents(queue);
  const { value: unacked } = useResource(queue.messages_unacknowledged > 0 ? path("leveret", "queues", queue.vhost, queue.name, "unacked") : null);
  const { value: waiting } = useResource(queue.messages_ready > 0 && queue.type !== "stream" ? placePath(queue, "ready") : null);
  const oldestReady = useGrowingAge(waiting, "oldest_ready_age");
  const oldestUnacked = useGrowingAge(unacked, "oldest_unacked_age");
  return html`
    <${Findings} texts=${diagnose(queue)} />
    <${Stats}
      items=${[
        ["Ready", count(queue.messages_ready), readyNote(waiting, oldestReady)],
        ["Unacked", count(queue.messages_unacknowledged), oldestUnacked ? `oldest ${duration(1000 * oldestUnacked)}` : ""],
        ["Messages", count(queue.messages), queue.messages_details?.rate ? growth(queue.messages_details.rate) : ""],
        ["Consumers", count(queue.consumers)],
        ["Publish", rate(queue.message_stats?.publish_details?.rate)],
        ["Deliver", rate(queue.message_stats?.deliver_get_details?.rate)],
        ["Ack", rate(queue.message_stats?.ack_details?.rate)],
      ]}
    />
    <${Failure} error=${compared.error} />
    <div class="grid">
      <${Panel} title="Messages" actions=${html`<${CompareField} /><${RangeChoice} />`}>
        <${Chart} id=${`${id}\nmessages`} label="Messages of the queue over time" object=${queue} kept=${kept} series=${MESSAGE_SERIES} format=${short} events=${events} other=${otherOf(compared, "messages")} />
      <//>
      <${Panel} title="Message rates" actions=${html`<${AddMarkButton} />`}>
        <${Chart} id=${`${id}\nrates`} label="Message rates of the queue over time" object=${queue} kept=${kept} series=${RATE_SERIES} format=${rate} events=${events} other=${otherOf(compared, "rates")} />
      <//>
    </div>
    <div class="grid">
      <${Panel} title="Properties">
        <${Facts}
          items=${[
            ["Vhost", queue.vhost],
            ["Type", queue.type],
            ["Memory", bytes(queue.memory)],
            ["Message bytes", bytes(queue.message_bytes)],
            ["Idle since", queue.idle_since],
            ["Timestamp of the next message", queue.head_message_timestamp && time(1000 * queue.head_message_timestamp)],
            ["Single active consumer", queue.single_active_consumer_tag],
            ["Owner", queue.owner_pid_details?.name && html`<a href=${link(["connections", queue.owner_pid_details.name])}>${queue.owner_pid_details.name}</a>`],
            ["Policy", queue.policy],
            ["Operator policy", queue.operator_policy],
            ...deduplicationOf(queue),
            ["Published in total", count(queue.message_stats?.publish)],
            ["Acked in total", count(queue.message_stats?.ack)],
          ]}
        />
      <//>
      <${EventsPanel} events=${events} />
      <${Panel} title="Arguments"><${Entries} object=${queue.arguments} /><//>
      ${Object.keys(queue.effective_policy_definition ?? {}).length > 0 &&
      html`<${Panel} title="Effective policy"><${Entries} object=${queue.effective_policy_definition} /><//>`}
    </div>
  `;
}

function Bindings({ queue }) {
  const { value, error } = useResource(`${queuePath(queue)}/bindings`);
  const may = useRole(queue);
  const add = html`<button onClick=${() => addBinding({ vhost: queue.vhost, destination: queue.name })} disabled=${!may("administrator", "write")}>Add binding</button>`;
  return html`
    <${Failure} error=${error} />
    <${Panel} title="Bindings to this queue" actions=${add} flush>
      <${BindingTable} bindings=${value} from vhost=${queue.vhost} />
    <//>
  `;
}

const Consumers = ({ queue }) => html`
  <${IdleConsumers} queue=${queue} />
  <${Panel} title="Consumers" flush>
    <${SmallTable}
      label="Consumers"
      rows=${queue.consumer_details ?? []}
      columns=${[...CONSUMER_COLUMNS.filter(({ id }) => id !== "queue.name" && id !== "queue.vhost"), ...(mayAdminister() ? [CANCEL] : [])]}
      keyOf=${consumerKey}
      initial="consumer_tag"
      empty="No consumers."
    />
  <//>
`;

const MAX_TAGS = 5;

/** Why consumers of the queue get no messages. */
function IdleConsumers({ queue }) {
  const { value } = useResource(path("leveret", "queues", queue.vhost, queue.name, "consumers"));
  const found = diagnoseConsumers(queue, value ?? []);
  if (found.length === 0) {
    return null;
  }
  const tagsOf = ({ tags }) => `${tags.slice(0, MAX_TAGS).join(", ")}${tags.length > MAX_TAGS ? ` and ${count(tags.length - MAX_TAGS)} more` : ""}`;
  return html`
    <${Panel} title="Why consumers are idle">
      ${found.map((item) => html`<p key=${item.text}>${item.text} <span class="muted">${tagsOf(item)}</span></p>`)}
    <//>
  `;
}

const CANCEL = {
  id: "cancel", title: "Cancel", width: 92, sortable: false, csv: false,
  cell: (row) => html`<button class="quiet" title=${`Cancel consumer ${row.consumer_tag}`} onClick=${() => cancelConsumer(row)}>Cancel…</button>`,
};

const Publish = ({ queue }) => html`
  <${Panel} title="Publish to this queue">
    <${PublishForm} vhost=${queue.vhost} exchange="" routingKey=${queue.name} />
  <//>
`;

const Live = ({ queue }) => html`<${LiveTail} key=${idOf(queue)} queue=${queue} target=${placePath(queue, "messages", "tail")} />`;

const Messages = ({ queue }) => html`<${MessageBrowser} queue=${queue} />`;

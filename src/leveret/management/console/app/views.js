// All views by the first part of their location.

import { has } from "./api.js";
import { html } from "./html.js";
import { link } from "./route.js";
import { isAdministrator, isMonitor } from "./session.js";
import { Note, Title } from "./ui/parts.js";
import { AlertsView } from "./views/alerts.js";
import { AuditView } from "./views/audit.js";
import { ChannelView, ChannelsView } from "./views/channels.js";
import { ConnectionView, ConnectionsView } from "./views/connections.js";
import { ConsumersView } from "./views/consumers.js";
import { DefinitionsView } from "./views/definitions.js";
import { ExchangeView, ExchangesView } from "./views/exchanges.js";
import { LearnView, LessonView } from "./views/learn.js";
import { LinkView, LinksView } from "./views/links.js";
import { LogView } from "./views/log.js";
import { MapView } from "./views/map.js";
import { NodeView } from "./views/node.js";
import { OverviewView } from "./views/overview.js";
import { PipelineView, PipelinesView } from "./views/pipelines.js";
import { PoliciesView } from "./views/policies.js";
import { QueueView } from "./views/queue.js";
import { QueuesView, StreamsView } from "./views/queues.js";
import { SchemasView } from "./views/schemas.js";
import { SessionsView } from "./views/sessions.js";
import { ShovelsView } from "./views/shovels.js";
import { TransactionsView } from "./views/transactions.js";
import { PermissionsView, UserView, UsersView } from "./views/users.js";
import { VhostView, VhostsView } from "./views/vhosts.js";

const always = () => true;

/** `key` follows `g`; `parts` is the number of parts of the location of one object. */
export const GROUPS = [
  {
    title: "",
    views: [
      { id: "overview", name: "Overview", key: "o", list: OverviewView, one: NodeView, parts: 2, shown: always },
      { id: "alerts", name: "Alerts", key: "w", list: AlertsView, shown: always },
      { id: "learn", name: "Learn", key: "b", list: LearnView, one: LessonView, parts: 2, shown: always },
    ],
  },
  {
    title: "Messaging",
    views: [
      { id: "queues", name: "Queues", key: "q", list: QueuesView, one: QueueView, parts: 3, vhosts: true, shown: always },
      { id: "streams", name: "Streams", key: "s", list: StreamsView, vhosts: true, shown: always },
      { id: "pipelines", name: "Pipelines", key: "i", list: PipelinesView, one: PipelineView, parts: 5, vhosts: true, shown: always },
      { id: "exchanges", name: "Exchanges", key: "e", list: ExchangesView, one: ExchangeView, parts: 3, vhosts: true, shown: always },
      { id: "payload-schemas", name: "Payload schemas", key: "f", list: SchemasView, shown: () => has("/leveret/payload-schemas") },
      { id: "map", name: "Topology", key: "m", list: MapView, vhosts: true, shown: always },
    ],
  },
  {
    title: "Clients",
    views: [
      { id: "connections", name: "Connections", key: "c", list: ConnectionsView, one: ConnectionView, parts: 2, vhosts: true, shown: always },
      { id: "channels", name: "Channels", key: "h", list: ChannelsView, one: ChannelView, parts: 2, vhosts: true, shown: always },
      { id: "consumers", name: "Consumers", key: "n", list: ConsumersView, vhosts: true, shown: always },
      { id: "links", name: "AMQP 1.0 links", key: "l", list: LinksView, one: LinkView, parts: 3, vhosts: true, shown: always },
      { id: "transactions", name: "Transactions", key: "t", list: TransactionsView, vhosts: true, shown: always },
    ],
  },
  {
    title: "Administration",
    views: [
      { id: "vhosts", name: "Vhosts", key: "v", list: VhostsView, one: VhostView, parts: 2, shown: always },
      { id: "users", name: "Users", key: "u", list: UsersView, one: UserView, parts: 2, shown: isAdministrator },
      { id: "permissions", name: "Permissions", key: "r", list: PermissionsView, shown: isAdministrator },
      { id: "sessions", name: "Your sessions", key: "y", list: SessionsView, shown: () => has("/leveret/sessions") },
      { id: "policies", name: "Policies", key: "p", list: PoliciesView, vhosts: true, shown: () => has("/policies") },
      { id: "shovels", name: "Shovels", key: "x", list: ShovelsView, vhosts: true, shown: () => has("/shovels") && isMonitor() },
      { id: "audit", name: "Audit log", key: "a", list: AuditView, shown: () => has("/leveret/audit") && isAdministrator() },
      { id: "log", name: "Log", key: "j", list: LogView, shown: () => has("/leveret/log") && isAdministrator() },
      { id: "definitions", name: "Definitions", key: "d", list: DefinitionsView, shown: () => has("/definitions") && isAdministrator() },
    ],
  },
];

export const VIEWS = GROUPS.flatMap(({ views }) => views);

/** Returns the component and the title of a location. */
export function viewOf(parts) {
  const view = VIEWS.find(({ id, shown }) => id === parts[0] && shown());
  if (view && parts.length === 1) {
    return { component: view.list, title: view.name };
  }
  if (view?.one && parts.length === view.parts) {
    return { component: view.one, title: `${parts.at(-1)} · ${view.name}` };
  }
  return { component: Missing, title: "Not found" };
}

const Missing = () => html`
  <${Title} title="Not found" />
  <${Note}>This location does not exist, or your user may not see it. <a href=${link(["overview"])}>Overview</a><//>
`;

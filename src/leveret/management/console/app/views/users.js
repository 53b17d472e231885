// Users and their permissions.

import {
  clearPermission, clearTopicPermission, deleteUser, editLimit, editPermission, editTopicPermission, editUser,
  grantRole, revokeRole,
} from "../actions.js";
import { has, path } from "../api.js";
import { useResource } from "../data.js";
import { html } from "../html.js";
import { link, route } from "../route.js";
import { mayAdminister, user as signedIn } from "../session.js";
import { copyAs } from "../ui/copy.js";
import { ListView } from "../ui/list.js";
import { Badge, Entries, ExchangeLink, Failure, Panel, Title, UserLink, changeColumn } from "../ui/parts.js";
import { SmallTable } from "../ui/table.js";

const Tags = ({ tags }) => html`
  <span class="badges">${tags.map((tag) => html`<${Badge} key=${tag} tone=${tag === "administrator" ? "warn" : ""}>${tag}<//>`)}</span>
`;

const COLUMNS = [
  { id: "name", title: "Name", cell: (row) => html`<${UserLink} name=${row.name} />` },
  { id: "tags", title: "Tags", value: (row) => row.tags.join(" "), cell: (row) => html`<${Tags} tags=${row.tags} />` },
  { id: "limits", title: "Limits", rank: 1, value: (row) => Object.entries(row.limits ?? {}).map(([name, value]) => `${name} ${value}`).join(", ") },
];

export const UsersView = () => html`
  <${ListView}
    title="Users"
    kind="users"
    noun="user"
    vhosts=${false}
    paged=${false}
    columns=${COLUMNS}
    keyOf=${(row) => row.name}
    actions=${mayAdminister() && html`<button class="primary" onClick=${() => editUser(null)}>Add user</button>`}
  />
`;

const pattern = (id, title) => ({ id, title, cell: (row) => html`<code title=${row[id]}>${row[id]}</code>` });

const VHOST = { id: "vhost", title: "Vhost" };
const PATTERNS = [pattern("configure", "Configure"), pattern("write", "Write"), pattern("read", "Read")];
const CHANGE = changeColumn(
  (row) => mayAdminister() && html`
    <button class="link" onClick=${() => editPermission(row)}>Change…</button>${" "}
    <button class="link" onClick=${() => clearPermission(row)}>Clear…</button>
  `,
);
const permissionKey = (row) => `${row.vhost}\n${row.user}`;

const EXCHANGE = { id: "exchange", title: "Exchange", cell: (row) => html`<${ExchangeLink} vhost=${row.vhost} name=${row.exchange} />` };
const CHANGE_TOPIC = changeColumn(
  (row) => mayAdminister() && html`
    <button class="link" onClick=${() => editTopicPermission(row)}>Change…</button>${" "}
    <button class="link" onClick=${() => clearTopicPermission(row)}>Clear…</button>
  `,
);
const TOPIC_COLUMNS = [VHOST, EXCHANGE, ...PATTERNS.slice(1), CHANGE_TOPIC];
const topicKey = (row) => `${permissionKey(row)}\n${row.exchange}`;
const ROLE_COLUMNS = [{ id: "role", title: "Role" }, pattern("vhosts", "Vhosts"), pattern("names", "Names")];
const roleKey = ({ role, vhosts, names }) => `${role}\n${vhosts}\n${names}`;
const USER = { id: "user", title: "User", cell: (row) => html`<${UserLink} name=${row.user} />` };

export function PermissionsView() {
  const topics = route.value.query.kind === "topic";
  return html`
    <${ListView}
      title=${topics ? "Topic permissions" : "Permissions"}
      kind=${topics ? "topic-permissions" : "permissions"}
      noun="permission"
      vhosts=${false}
      paged=${false}
      sort="user"
      columns=${topics ? [USER, ...TOPIC_COLUMNS] : [USER, VHOST, ...PATTERNS, CHANGE]}
      keyOf=${topics ? topicKey : permissionKey}
      empty=${topics ? "No topic permissions: routing keys are not restricted." : "No permissions."}
      actions=${html`
        <a class="button" href=${link(["permissions"], { kind: topics ? "" : "topic" })}>${topics ? "Permissions" : "Topic permissions"}</a>
        ${mayAdminister() && html`<button class="primary" onClick=${() => (topics ? editTopicPermission() : editPermission())}>${topics ? "Set topic permissions" : "Set permissions"}</button>`}
      `}
    />
  `;
}

/** The roles of a user, which have the place of permissions in the console and the HTTP API. */
function Roles({ name }) {
  const target = path("leveret", "roles", name);
  const { value, error } = useResource(target);
  const grants = (value ?? []).map(({ role, vhosts, names }) => ({ role, vhosts, names }));
  const revoke = changeColumn((row) => mayAdminister() && html`<button class="link" onClick=${() => revokeRole(name, row, grants)}>Revoke…</button>`);
  return html`
    <${Failure} error=${error} />
    <${Panel} title="Roles" actions=${mayAdminister() && html`<button onClick=${() => grantRole(name, grants)} disabled=${!value}>Grant role</button>`} flush>
      <${SmallTable} label="Roles" rows=${grants} columns=${[...ROLE_COLUMNS, revoke]} keyOf=${roleKey} initial="role" empty="No roles: tags and permissions decide what the user may do." />
    <//>
  `;
}

export function UserView({ parts }) {
  const [, name] = parts;
  const target = path("users", name);
  const { value: user, error } = useResource(target);
  const { value: permissions } = useResource(`${target}/permissions`);
  const { value: topics } = useResource(`${target}/topic-permissions`);
  const crumb = html`<a href=${link(["users"])}>Users</a>`;
  if (!user) {
    return html`<${Title} crumb=${crumb} title=${name} /><${Failure} error=${error} />`;
  }
  return html`
    <${Title}
      crumb=${crumb}
      title=${name}
      badges=${html`<${Tags} tags=${user.tags} />`}
      actions=${html`
        ${mayAdminister() && html`<button onClick=${() => editUser(user)}>Change…</button>`}
        ${mayAdminister() && has("/user-limits/{user}/{name}", "PUT") && html`<button onClick=${() => editLimit("user", name)}>Limits…</button>`}
        <button onClick=${() => copyAs("user", user)}>Copy as…</button>
        <button class="danger" disabled=${!mayAdminister() || name === signedIn.value.name} onClick=${() => deleteUser(user)}>Delete…</button>
      `}
    />
    <${Failure} error=${error} />
    <${Panel} title="Permissions" actions=${mayAdminister() && html`<button onClick=${() => editPermission({ user: name })}>Set permissions</button>`} flush>
      <${SmallTable} label="Permissions" rows=${permissions ?? []} columns=${[VHOST, ...PATTERNS, CHANGE]} keyOf=${permissionKey} initial="vhost" empty="No permissions: the user cannot connect to any vhost." />
    <//>
    ${has("/leveret/roles/{user}") && html`<${Roles} name=${name} />`}
    <${Panel} title="Topic permissions" actions=${mayAdminister() && html`<button onClick=${() => editTopicPermission({ user: name })}>Set topic permissions</button>`} flush>
      <${SmallTable} label="Topic permissions" rows=${topics ?? []} columns=${TOPIC_COLUMNS} keyOf=${topicKey} initial="vhost" empty="No topic permissions: routing keys are not restricted." />
    <//>
    ${Object.keys(user.limits ?? {}).length > 0 && html`<${Panel} title="Limits"><${Entries} object=${user.limits} /><//>`}
  `;
}

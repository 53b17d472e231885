// Policies and operator policies.

import { deletePolicy, editPolicy } from "../actions.js";
import { has } from "../api.js";
import { plain } from "../format.js";
import { html } from "../html.js";
import { link, route } from "../route.js";
import { mayAdminister, maySetPolicies, maySetPoliciesIn } from "../session.js";
import { copyAs } from "../ui/copy.js";
import { ListView } from "../ui/list.js";
import { changeColumn } from "../ui/parts.js";

const COLUMNS = [
  { id: "name", title: "Name" },
  { id: "vhost", title: "Vhost", width: 120, rank: 3 },
  { id: "pattern", title: "Pattern", cell: (row) => html`<code title=${row.pattern}>${row.pattern}</code>` },
  { id: "apply-to", title: "Applies to", width: 130, rank: 2 },
  { id: "definition", title: "Definition", rank: 1, cell: (row) => html`<code title=${plain(row.definition)}>${plain(row.definition)}</code>` },
  { id: "priority", title: "Priority", width: 84, num: true },
];

const changePolicy = (collection, mayChange, mayChangeIn) =>
  changeColumn(
    (row) => html`
      <button class="link" onClick=${() => copyAs(collection, row)}>Copy as…</button>
      ${mayChangeIn(row.vhost) &&
      html`
        ${" "}<button class="link" onClick=${() => editPolicy(collection, row)}>Change…</button>${" "}
        <button class="link" onClick=${() => deletePolicy(collection, row)}>Delete…</button>
      `}
    `,
    mayChange ? 240 : 100,
  );

export function PoliciesView() {
  const operator = route.value.query.kind === "operator" && has("/operator-policies");
  const collection = operator ? "operator-policies" : "policies";
  const mayChange = operator ? mayAdminister() : maySetPolicies();
  const mayChangeIn = operator ? mayAdminister : maySetPoliciesIn;
  return html`
    <${ListView}
      title=${operator ? "Operator policies" : "Policies"}
      kind=${collection}
      noun="policy"
      paged=${false}
      columns=${[...COLUMNS, changePolicy(collection, mayChange, mayChangeIn)]}
      keyOf=${(row) => `${row.vhost}\n${row.name}`}
      empty="No policies."
      actions=${html`
        ${has("/operator-policies") &&
        html`<a class="button" href=${link(["policies"], { kind: operator ? "" : "operator" })}>${operator ? "Policies" : "Operator policies"}</a>`}
        ${mayChange && html`<button class="primary" onClick=${() => editPolicy(collection, null)}>Add policy</button>`}
      `}
    />
  `;
}

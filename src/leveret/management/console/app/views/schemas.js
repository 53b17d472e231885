// Schemas by which payloads are decoded. All users share them.

import { call, path } from "../api.js";
import { useResource } from "../data.js";
import { bytes, toBase64 } from "../format.js";
import { html, useState } from "../html.js";
import { isAdministrator, mayChangeIn, mayMakeRules, ownVhosts } from "../session.js";
import { ChangeForm, confirmChange, openDialog } from "../ui/dialog.js";
import { Choice, Text, useFields } from "../ui/form.js";
import { VhostChoice } from "../ui/list.js";
import { changeColumn, Failure, Panel, Title } from "../ui/parts.js";
import { SCHEMAS } from "../ui/schema.js";
import { SmallTable } from "../ui/table.js";

const FORMATS = [
  ["protobuf", "Protobuf"],
  ["avro", "Avro"],
];
const TITLES = Object.fromEntries(FORMATS);
const MAX_SCHEMA = 256 << 10;

const conditions = (schema) =>
  [
    schema.queue && `queue ${schema.queue}`,
    schema.exchange && `exchange ${schema.exchange}`,
    schema.content_type && `content type ${schema.content_type}`,
    schema.header && `header ${schema.header}${schema.header_value && ` = ${schema.header_value}`}`,
    schema.schema_id !== null && `schema id ${schema.schema_id}`,
  ].filter(Boolean);
const conditionText = (schema) => conditions(schema).join(", ") || "messages that name one of its types";

const COLUMNS = [
  { id: "name", title: "Schema", width: 200 },
  { id: "format", title: "Format", width: 100, value: (row) => TITLES[row.format] },
  { id: "type", title: "Message type", value: (row) => row.type || row.types.join(", ") },
  { id: "vhost", title: "Vhost", width: 100, rank: 4, value: (row) => row.vhost ?? "" },
  { id: "conditions", title: "For", rank: 1, value: conditionText, cell: (row) => html`<span title=${conditionText(row)}>${conditionText(row)}</span>` },
  { id: "size", title: "Size", width: 100, num: true, rank: 3, cell: (row) => bytes(row.size) },
];
const CHANGE = changeColumn(
  (row) => mayChangeIn(row.vhost) && html`
    <button class="link" onClick=${() => setSchema(row)}>Replace…</button>${" "}
    <button class="link" onClick=${() => deleteSchema(row)}>Delete…</button>
  `,
);

const schemaPath = (name) => path("leveret", "payload-schemas", name);

function deleteSchema({ name }) {
  confirmChange({
    title: "Delete schema",
    text: html`Deletes the schema <b>${name}</b> for all users. Messages stay as they are.`,
    label: "Delete schema",
    change: () => call("DELETE", schemaPath(name)),
    done: `Deleted schema '${name}'`,
  });
}

const setSchema = (schema) => openDialog(schema ? `Replace schema '${schema.name}'` : "Add a schema", () => html`<${SetSchema} schema=${schema} />`);

function SetSchema({ schema }) {
  const state = useFields({
    name: schema?.name ?? "",
    format: schema?.format ?? "protobuf",
    type: schema?.type ?? "",
    vhost: schema ? (schema.vhost ?? "") : isAdministrator() ? "" : ownVhosts()[0],
    queue: schema?.queue ?? "",
    exchange: schema?.exchange ?? "",
    content_type: schema?.content_type ?? "",
    header: schema?.header ?? "",
    header_value: schema?.header_value ?? "",
    schema_id: schema?.schema_id ?? "",
  });
  const [file, setFile] = useState(null);
  const [values, set] = state;
  const isAvro = values.format === "avro";
  async function submit() {
    const { name, vhost, schema_id: id, ...rest } = values;
    if (!file || file.size > MAX_SCHEMA) {
      throw new Error(`the file has ${bytes(file?.size ?? 0)}; expected at most ${bytes(MAX_SCHEMA)}`);
    }
    const content = isAvro ? await file.text() : toBase64(new Uint8Array(await file.arrayBuffer()));
    const body = { ...rest, type: isAvro ? "" : rest.type, vhost: vhost || null, schema_id: id === "" ? null : Number(id), schema: content };
    await call("PUT", schemaPath(name), body);
    return `Set schema '${name}'`;
  }
  return html`
    <${ChangeForm} label="Set schema" submit=${submit}>
      ${!schema && html`<${Text} label="Name" name="name" state=${state} required maxlength="200" />`}
      <div class="pair">
        <${Choice} label="Format" name="format" state=${state} options=${FORMATS} />
        <label class="field"><span>File</span><input type="file" required onChange=${(event) => setFile(event.target.files[0])} /><span class="small muted">${isAvro ? "An Avro schema in JSON" : "The output of protoc --include_imports --descriptor_set_out"}</span></label>
      </div>
      ${!isAvro && html`<${Text} label="Message type" name="type" state=${state} required maxlength="1000" placeholder="shop.Order" />`}
      <p class="muted">The schema is used for messages that meet all of these conditions. Empty: any.</p>
      <div class="pair">
        <label class="field"><span>Vhost</span><${VhostChoice} may=${mayChangeIn} required=${!isAdministrator()} value=${values.vhost} onChange=${(name) => set("vhost", name)} /></label>
        <${Text} label="Content type" name="content_type" state=${state} maxlength="255" />
      </div>
      <div class="pair">
        <${Text} label="Pattern of queues" name="queue" state=${state} maxlength="1000" hint="An RE2 expression" />
        <${Text} label="Pattern of exchanges" name="exchange" state=${state} maxlength="1000" hint="An RE2 expression" />
      </div>
      <div class="pair">
        <${Text} label="Header" name="header" state=${state} maxlength="255" />
        <${Text} label="Value of the header" name="header_value" state=${state} maxlength="1000" />
      </div>
      <${Text} label="Schema id" name="schema_id" type="number" min="0" max="4294967295" state=${state} hint="The id in a registry with which payloads begin" />
    <//>
  `;
}

export function SchemasView() {
  const { value: schemas, error } = useResource(SCHEMAS);
  return html`
    <${Title} title="Payload schemas" actions=${mayMakeRules() && html`<button class="primary" onClick=${() => setSchema(null)}>Add schema</button>`} />
    <${Failure} error=${error} />
    <${Panel} title="Schemas" flush>
      <${SmallTable} label="Schemas" rows=${schemas ?? []} columns=${mayMakeRules() ? [...COLUMNS, CHANGE] : COLUMNS} keyOf=${(row) => row.name} initial="name" loading=${!schemas} empty="No schema. Add one to decode Protobuf and Avro payloads of messages." />
    <//>
  `;
}

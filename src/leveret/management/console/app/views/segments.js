// The sealed segments of a stream, and its Iceberg table.

import { path } from "../api.js";
import { useResource } from "../data.js";
import { bytes, count, time } from "../format.js";
import { html } from "../html.js";
import { Badge, Facts, Failure, Note, Panel } from "../ui/parts.js";
import { SmallTable } from "../ui/table.js";

const COLUMNS = [
  { id: "first", title: "First offset", width: 110, num: true, cell: (row) => count(row.first) },
  { id: "last", title: "Last offset", width: 110, num: true, cell: (row) => count(row.last) },
  { id: "count", title: "Messages", width: 100, num: true, cell: (row) => count(row.count) },
  { id: "bytes", title: "Size", width: 90, num: true, rank: 1, cell: (row) => bytes(row.bytes) },
  { id: "last_time", title: "Until", width: 180, rank: 2, cell: (row) => time(row.last_time) },
  { id: "held_by", title: "Pins", width: 70, num: true, rank: 4 },
  { id: "path", title: "File", rank: 3, cell: (row) => html`<code title=${row.path}>${row.path}</code>` },
];

export function Segments({ queue }) {
  const { value, error } = useResource(path("leveret", "streams", queue.vhost, queue.name));
  if (!value) {
    return html`<${Failure} error=${error} />`;
  }
  const { table } = value;
  return html`
    <${Failure} error=${error} />
    ${value.sealing_problem && html`<${Note} tone="bad">${value.sealing_problem}<//>`}
    ${value.unsealed_because && html`<${Note}>${value.unsealed_because}<//>`}
    <div class="grid">
      <${Panel} title="Stream">
        <${Facts}
          items=${[
            ["Offsets", value.next_offset > value.first_offset ? `${count(value.first_offset)} to ${count(value.next_offset - 1)}` : "none"],
            ["Since", value.since],
            ["Readers", count(value.readers)],
            ["Named consumers", count(value.consumers)],
            ["Largest lag", value.lag === null ? "" : count(value.lag)],
            ["Segments", `${count(value.segments)}, ${bytes(value.segment_bytes)}`],
            ["Unsealed messages", count(value.unsealed)],
          ]}
        />
      <//>
      <${Panel} title="Iceberg table">
        ${table
          ? html`
              <${Facts}
                items=${[
                  ["Table", table.table],
                  ["Files", count(table.files)],
                  ["State", table.pending ? html`<${Badge} tone="warn">update pending<//>` : "up to date"],
                  ["Up to date at", table.synced && time(table.synced)],
                  ["Problem", table.problem],
                ]}
              />
            `
          : html`<p class="muted">This broker keeps no Iceberg tables of streams (<code>streams.iceberg</code>).</p>`}
      <//>
    </div>
    <${Panel} title="Sealed segments" flush>
      <${SmallTable} label="Sealed segments" rows=${value.sealed} columns=${COLUMNS} keyOf=${(row) => row.id} initial="first" initialDescending empty="No segment is sealed yet." />
    <//>
  `;
}

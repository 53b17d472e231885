// Arguments and keys of policies: fields for those that the broker knows, and JSON for others.

import { html } from "../html.js";
import { Area, Choice, parseObject, Text } from "./form.js";

/** Returns the values of the fields for an object: `known` has the texts of known arguments, `arguments` the others as JSON. */
export function fieldsOf(object, known) {
  const names = new Set(known.map(({ name }) => name));
  const isKnown = ([name, value]) => names.has(name) && typeof value !== "object";
  const entries = Object.entries(object);
  const others = entries.filter((entry) => !isKnown(entry));
  return {
    known: Object.fromEntries(entries.filter(isKnown).map(([name, value]) => [name, String(value)])),
    arguments: others.length > 0 ? JSON.stringify(Object.fromEntries(others), null, 2) : "",
  };
}

/** Returns the object that the fields hold. Throws `Error` with the label if the JSON is invalid. */
export function argumentsIn(values, known, label) {
  const parse = { number: Number, flag: (text) => text === "true", text: (text) => text };
  const given = known.filter(({ name }) => values.known[name] !== undefined).map(({ name, type }) => [name, parse[type](values.known[name])]);
  return { ...parseObject(values.arguments, label), ...Object.fromEntries(given) };
}

/** `needed` is the name of an argument that must be given, if any. */
export function ArgumentFields({ label, noun, state: [values, set], known, needed = "", example }) {
  const { [needed]: own = "", ...given } = values.known;
  const shown = known.filter(({ name }) => name === needed || given[name] !== undefined);
  const change = (name, text) => set("known", { ...values.known, [name]: text });
  const state = [needed ? { ...given, [needed]: own } : given, change];
  const add = ({ target }) => {
    const { name, type, choices } = known.find((item) => item.name === target.value);
    change(name, choices?.[0] ?? (type === "flag" ? "true" : ""));
    target.value = "";
  };
  return html`
    ${shown.map(
      ({ name, type, choices, expected, min, max }) => html`
        <div class="argument" key=${name}>
          ${type === "flag" || choices
            ? html`<${Choice} label=${name} name=${name} state=${state} options=${choices ?? ["true", "false"]} />`
            : html`<${Text} label=${name} name=${name} state=${state} hint=${expected} ...${type === "number" ? { type, min, max, step: 1, required: true } : { maxlength: 255, required: name === needed }} />`}
          ${name !== needed && html`<button type="button" class="quiet" aria-label=${`Remove ${name}`} onClick=${() => change(name, undefined)}>×</button>`}
        </div>
      `,
    )}
    <label class="field">
      <span>Add ${noun}</span>
      <select value="" onChange=${add}>
        <option value="">–</option>
        ${known.filter((item) => !shown.includes(item)).map(({ name }) => html`<option key=${name} value=${name}>${name}</option>`)}
      </select>
    </label>
    <${Area} label=${`${label} as JSON`} name="arguments" rows="2" state=${[values, set]} hint=${`For others, for example ${example}`} />
  `;
}

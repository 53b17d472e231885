// Fields of forms. `state` is a pair of values and setter from `useFields`.

import { html, useState } from "../html.js";

/** Returns the values of a form's fields and the function that sets one: `set(name, value)`. */
export function useFields(initial) {
  const [values, setValues] = useState(initial);
  return [values, (name, value) => setValues((old) => ({ ...old, [name]: value }))];
}

export const Text = ({ label, name, state: [values, set], type = "text", required, placeholder, list, hint, ...rest }) => html`
  <label class="field">
    <span>${label}</span>
    <input
      ...${rest}
      type=${type}
      name=${name}
      value=${values[name]}
      required=${required}
      placeholder=${placeholder}
      list=${list}
      autocomplete=${rest.autocomplete ?? "off"}
      spellcheck=${false}
      onInput=${(event) => set(name, event.target.value)}
    />
    ${hint && html`<span class="small muted">${hint}</span>`}
  </label>
`;

export const Area = ({ label, name, state: [values, set], rows = 3, placeholder, hint }) => html`
  <label class="field">
    <span>${label}</span>
    <textarea name=${name} rows=${rows} placeholder=${placeholder} spellcheck=${false} value=${values[name]} onInput=${(event) => set(name, event.target.value)}></textarea>
    ${hint && html`<span class="small muted">${hint}</span>`}
  </label>
`;

const textOf = (options, value) => options.find((option) => Array.isArray(option) && option[0] === value)?.[1] ?? value;

/** `options` are values, or pairs of value and text. */
export const Choice = ({ label, name, state: [values, set], options }) => html`
  <label class="field">
    <span>${label}</span>
    <select name=${name} value=${values[name]} title=${textOf(options, values[name])} onChange=${(event) => set(name, event.target.value)}>
      ${options.map((option) => {
        const [value, text] = Array.isArray(option) ? option : [option, option];
        return html`<option value=${value} selected=${value === values[name]}>${text}</option>`;
      })}
    </select>
  </label>
`;

export const Check = ({ label, name, state: [values, set] }) => html`
  <label class="check">
    <input type="checkbox" name=${name} checked=${values[name]} onChange=${(event) => set(name, event.target.checked)} />
    <span>${label}</span>
  </label>
`;

/** Returns the object that a text holds as JSON; an empty text is an empty object. Throws `Error` with the field's label. */
export function parseObject(text, label) {
  if (!text.trim()) {
    return {};
  }
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`${label} is not valid JSON: ${error.message}`);
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) {
    throw new Error(`${label} is not a JSON object; expected for example {"x-max-length": 1000}`);
  }
  return value;
}

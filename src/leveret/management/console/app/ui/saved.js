// The choice of a template or a saved message in the form that publishes.

import { save } from "../csv.js";
import { html, useRef, useState } from "../html.js";
import { deleteMessage, exportMessages, importMessages, savedMessages, saveMessage, TEMPLATES } from "../saved.js";
import { toast } from "./parts.js";

/**
 * Args (as properties):
 *   values: The fields of the form: `{routing_key, payload, base64, persistent, properties}`.
 *   set(name, value): Sets a field.
 */
export function SavedMessages({ values, set }) {
  const [saved, setSaved] = useState(savedMessages);
  const [chosen, setChosen] = useState("");
  const [name, setName] = useState("");
  const file = useRef(null);

  function attempt(change) {
    try {
      setSaved(change());
      setChosen(""); // the choices have moved
    } catch (error) {
      toast(error.message, "bad");
    }
  }
  function choose(value) {
    setChosen(value);
    const [kind, index] = value.split(" ");
    const item = (kind === "saved" ? saved : TEMPLATES)[Number(index)];
    if (!value || !item) {
      return;
    }
    for (const field of ["payload", "base64", "persistent", "properties"]) {
      set(field, item[field]);
    }
    if (item.routing_key) {
      set("routing_key", item.routing_key);
    }
    setName(kind === "saved" ? item.name : "");
  }
  function keep() {
    const { routing_key, payload, base64, persistent, properties } = values;
    attempt(() => saveMessage({ name: name.trim(), routing_key, payload, base64, persistent, properties }));
  }
  async function load({ target }) {
    const [found] = target.files;
    if (found) {
      const text = await found.text();
      attempt(() => importMessages(text));
      target.value = "";
    }
  }
  const isSaved = saved.some((item) => item.name === name.trim());
  return html`
    <label class="field">
      <span>Begin with</span>
      <select value=${chosen} onChange=${(event) => choose(event.target.value)}>
        <option value="">–</option>
        <optgroup label="Templates">
          ${TEMPLATES.map((item, index) => html`<option value=${`template ${index}`} selected=${chosen === `template ${index}`}>${item.name}</option>`)}
        </optgroup>
        ${saved.length > 0 &&
        html`
          <optgroup label="Saved in this browser">
            ${saved.map((item, index) => html`<option value=${`saved ${index}`} selected=${chosen === `saved ${index}`}>${item.name}</option>`)}
          </optgroup>
        `}
      </select>
    </label>
    <details>
      <summary>Saved messages</summary>
      <div class="form">
        <label class="field">
          <span>Name of the saved message</span>
          <input value=${name} maxlength="100" autocomplete="off" onInput=${(event) => setName(event.target.value)} onKeyDown=${(event) => event.key === "Enter" && event.preventDefault()} />
          <span class="small muted">Saved messages stay in this browser, with their payloads, until you delete them.</span>
        </label>
        <div class="row">
          <button type="button" disabled=${!name.trim()} onClick=${keep}>${isSaved ? "Replace" : "Save message"}</button>
          <button type="button" disabled=${!isSaved} onClick=${() => attempt(() => deleteMessage(name.trim()))}>Delete saved message</button>
          <button type="button" disabled=${saved.length === 0} onClick=${() => save("saved-messages.json", exportMessages(), "application/json")}>Export</button>
          <button type="button" onClick=${() => file.current.click()}>Import</button>
          <input ref=${file} type="file" accept="application/json,.json" aria-label="File of saved messages" hidden onChange=${load} />
        </div>
      </div>
    </details>
  `;
}

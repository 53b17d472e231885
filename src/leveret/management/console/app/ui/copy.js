// "Copy as": an object as a command or as code.

import { BASE, get, withQuery } from "../api.js";
import { copies } from "../copy.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { user } from "../session.js";
import { openDialog } from "./dialog.js";
import { Note, toast } from "./parts.js";

const AMQP_PORT = 5672;

/** Opens a dialog with the forms of an object, as in `copies`. */
export const copyAs = (kind, object) => openDialog("Copy as", () => html`<${CopyAs} kind=${kind} object=${object} />`);

/** The choice of a form, which begins with `first`, and its text. */
export function CopyAs({ kind, object, first = "curl" }) {
  const [port, setPort] = useState(AMQP_PORT);
  const [chosen, setChosen] = useState(first);
  const shown = useRef(null);
  useEffect(() => {
    get(withQuery("/overview", { columns: "listeners" })).then(
      ({ listeners = [] }) => setPort(listeners.find(({ protocol }) => protocol === "amqp")?.port ?? AMQP_PORT),
      () => {}, // the default port stays
    );
  }, []);
  const forms = copies(kind, object, { api: BASE.href, amqpHost: location.hostname, amqpPort: port, user: user.value?.name ?? "" });
  const { text, error } = attempt(forms.find(([id]) => id === chosen)[2]);

  async function copy() {
    try {
      await navigator.clipboard.writeText(text);
      toast("Copied");
    } catch {
      getSelection().selectAllChildren(shown.current); // without TLS, browsers let only the user copy
      toast("The browser does not allow to copy; the text is selected");
    }
  }
  return html`
    <div class="form">
      <div class="row">
        <label class="check">
          <span>Copy as</span>
          <select value=${chosen} onChange=${(event) => setChosen(event.target.value)}>
            ${forms.map(([id, title]) => html`<option value=${id} selected=${id === chosen}>${title}</option>`)}
          </select>
        </label>
        <button type="button" disabled=${Boolean(error)} onClick=${copy}>Copy</button>
      </div>
      ${error ? html`<${Note} tone="warn">${error}<//>` : html`<pre ref=${shown} class="payload" tabindex="0" aria-label="Text to copy">${text}</pre>`}
      <p class="small muted">Commands are for Bash or Zsh. Replace <code>PASSWORD</code> where it occurs; <code>curl</code> asks for it.</p>
    </div>
  `;
}

function attempt(make) {
  try {
    return { text: make(), error: "" };
  } catch (error) {
    return { text: "", error: error.message };
  }
}

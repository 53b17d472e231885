// Dialogs: one at a time, above the view.

import { html, signal, useEffect, useRef, useState } from "../html.js";
import { withoutUpdates } from "../live.js";
import { isReadOnly } from "../session.js";
import { Note, toast } from "./parts.js";

const current = signal(null);

/** Opens a dialog with the content that `content()` renders. */
export function openDialog(title, content, options = {}) {
  current.value = { title, content, ...options };
}

export function closeDialog() {
  current.value = null;
}

export const isDialogOpen = () => current.value !== null;

/** The place of the dialog in the page. */
export function DialogHost() {
  const opened = current.value;
  return opened && html`<${Modal} key=${opened} opened=${opened} />`;
}

function Modal({ opened }) {
  const element = useRef(null);
  useEffect(() => {
    const dialog = element.current;
    dialog.showModal();
    dialog.querySelector("[autofocus], input, select, textarea, .end button")?.focus();
    return () => dialog.close();
  }, []);
  const { title, content: Content, bare, className = "" } = opened;
  return html`
    <dialog ref=${element} class=${className} aria-label=${title} onCancel=${closeDialog} onClick=${(event) => event.target === element.current && closeDialog()}>
      ${!bare && html`<header><h2 title=${title}>${title}</h2></header>`}
      ${bare ? html`<${Content} />` : html`<div class="body"><${Content} /></div>`}
    </dialog>
  `;
}

/**
 * A form in a dialog that executes a change. It keeps its input if the change fails, and shows the reason until the input changes.
 *
 * `submit` returns the message for the user; `children` are the fields. `forAll` is for changes that read-only users may make, `disabled`
 * for a change of nothing.
 */
export function ChangeForm({ label, tone = "primary", submit, stay, forAll, disabled, children }) {
  const isRefused = isReadOnly() && !forAll;
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  async function send(event) {
    event.preventDefault();
    const opened = current.value;
    setBusy(true);
    setError(null);
    try {
      const message = await withoutUpdates(submit);
      if (message) {
        toast(message);
      }
      // The user may have closed the dialog meanwhile, and opened another one.
      if (!stay && current.value === opened) {
        closeDialog();
      }
    } catch (failure) {
      if (current.value === opened) {
        setError(failure);
      } else {
        toast(failure.message, "bad");
      }
    }
    setBusy(false);
  }
  return html`
    <form class="form" onSubmit=${send} onInput=${() => setError(null)} onClick=${({ target }) => target.closest("button[type=button]") && setError(null)}>
      ${children}
      ${error && html`<${Note} tone="bad">${error.message}<//>`}
      ${isRefused && html`<${Note}>Your user has the tag read-only and may change nothing.<//>`}
      <div class="end">
        ${!stay && html`<button type="button" onClick=${closeDialog}>Cancel</button>`}
        <button class=${tone} disabled=${busy || isRefused || disabled}>${label}</button>
      </div>
    </form>
  `;
}

/** Asks before a change that cannot be undone. */
export function confirmChange({ title, text, label, change, done, forAll }) {
  openDialog(
    title,
    () => html`
      <${ChangeForm}
        label=${label}
        tone="danger"
        forAll=${forAll}
        submit=${async () => {
          await change();
          return done;
        }}
      >
        <p>${text}</p>
      <//>
    `,
  );
}

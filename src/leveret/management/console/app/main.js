// The page: sign-in form, or the frame around the current view.

import { countAlerts, raised } from "./alerts.js";
import { discover, lost, missingShards } from "./api.js";
import { plural, time } from "./format.js";
import { html, render, useEffect, useErrorBoundary, useLayoutEffect, useState } from "./html.js";
import { installKeys, openHelp, openPalette } from "./keyboard.js";
import { isPaused, pausedAt, setPaused, source, start, stop } from "./live.js";
import { link, route } from "./route.js";
import { isReadOnly, notice, resume, SESSION, signIn, signInAtProvider, signOut, update, user, ways } from "./session.js";
import { theme, toggleTheme } from "./theme.js";
import { useResource } from "./data.js";
import { DialogHost, closeDialog } from "./ui/dialog.js";
import { useFields, Text } from "./ui/form.js";
import { Failure, Note, Title, Toasts } from "./ui/parts.js";
import { GROUPS, viewOf } from "./views.js";

function SignIn() {
  const state = useFields({ name: "", password: "" });
  const [error, setError] = useState(notice.value);
  const [busy, setBusy] = useState(false);
  async function attempt(event, enter) {
    event.preventDefault();
    setBusy(true);
    setError("");
    try {
      await enter();
    } catch (failure) {
      setError(failure.message);
      setBusy(false);
    }
  }
  const { password, providers } = ways.value;
  return html`
    <main class="signin">
      <form class="form" onSubmit=${(event) => attempt(event, () => signIn(state[0].name, state[0].password))}>
        <h1>Leveret</h1>
        ${password && html`<${Text} label="User name" name="name" state=${state} required autofocus autocomplete="username" />`}
        ${password && html`<${Text} label="Password" name="password" type="password" state=${state} autocomplete="current-password" />`}
        ${error && html`<${Note} tone="bad">${error}<//>`}
        ${password && html`<button class="primary" disabled=${busy}>Sign in</button>`}
        ${providers.map(
          (provider) => html`
            <button key=${provider.issuer} class=${password ? "" : "primary"} type="button" disabled=${busy} onClick=${(event) => attempt(event, () => signInAtProvider(provider))}>Sign in with ${provider.label}</button>
          `,
        )}
      </form>
    </main>
  `;
}

const clock = (milliseconds) => time(milliseconds).slice(11);

const SOURCES = {
  events: () => ["Live", "The broker announces changes."],
  polling: () => ["Every 5 s", "The view is read every five seconds while it is visible."],
  paused: () => [`Paused at ${clock(pausedAt())}`, "The view shows the numbers of that time."],
  lost: () => [`No answer since ${clock(lost.value)}`, "The broker does not answer. The view shows the numbers of that time, and is read again every five seconds."],
};

function Head({ onMenu, menuOpen }) {
  const { value } = useResource("/overview?columns=cluster_name,product_version", { slow: true });
  const node = value ? `${value.cluster_name} ${value.product_version}` : "";
  const name = `${user.value.name}${isReadOnly() ? " (read-only)" : ""}`;
  const state = lost.value && source.value !== "paused" ? "lost" : source.value;
  const [text, hint] = SOURCES[state]();
  return html`
    <header class="head">
      <button class="menu quiet" aria-expanded=${menuOpen} aria-controls="nav" onClick=${onMenu}>Menu</button>
      <a class="brand" href="#/overview"><strong>Leveret</strong> <span class="node" title=${node}>${node}</span></a>
      <span class="grow"></span>
      ${raised.value > 0 && html`<a class="badge bad" href=${link(["alerts"])}>${plural(raised.value, "alert")}</a>`}
      ${missingShards.value && html`<a class="badge bad" href="#/overview" title="Lists do not have their objects until they are ready.">Not ready: shard ${missingShards.value}</a>`}
      <button class="quiet wide" onClick=${openPalette} title="Go to a queue, an exchange or a view (Ctrl-K)">Search <kbd>Ctrl K</kbd></button>
      <button class="live quiet" data-source=${state} title=${hint} aria-pressed=${isPaused()} onClick=${() => setPaused(!isPaused())}>${text}</button>
      <button class="quiet wide" onClick=${toggleTheme}>${theme.value === "dark" ? "Light" : "Dark"}</button>
      <button class="quiet wide" onClick=${openHelp} aria-label="Keyboard shortcuts">?</button>
      <span class="muted small wide user clip" title=${name}>${name}</span>
      <button class="quiet" onClick=${signOut}>Sign out</button>
    </header>
  `;
}

function Navigation({ open, onChoice }) {
  const [section] = route.value.parts;
  const { vhost } = route.value.query;
  return html`
    <nav class="nav ${open ? "open" : ""}" id="nav" aria-label="Views" onClick=${(event) => event.target.closest("a") && onChoice()}>
      ${GROUPS.map(({ title, views }) => {
        const shown = views.filter(({ shown: test }) => test());
        return (
          shown.length > 0 &&
          html`
            ${title && html`<h2>${title}</h2>`}
            <ul>
              ${shown.map(
                ({ id, name, vhosts }) => html`
                  <li key=${id}>
                    <a href=${link([id], { vhost: vhosts ? vhost : "" })} aria-current=${id === section ? "page" : undefined}>${name}</a>
                  </li>
                `,
              )}
            </ul>
          `
        );
      })}
      <button class="quiet narrow" onClick=${toggleTheme}>${theme.value === "dark" ? "Light theme" : "Dark theme"}</button>
    </nav>
  `;
}

/** A view, or the reason why it cannot be shown. */
function Bounded({ view: View, parts }) {
  const [error] = useErrorBoundary();
  return error ? html`<${Title} title="This view cannot be shown" /><${Failure} error=${error} />` : html`<${View} parts=${parts} />`;
}

function Frame() {
  const [menuOpen, setMenuOpen] = useState(false);
  const { parts } = route.value;
  const place = parts.join("\n");
  useEffect(() => {
    start(user.value.name);
    countAlerts();
    return stop;
  }, [user.value.name]);
  const { value: session } = useResource(SESSION, { slow: true });
  useEffect(() => update(session?.user), [session]);
  const { component: View, title } = viewOf(parts);
  useLayoutEffect(() => {
    document.title = `${title} · Leveret`;
    closeDialog();
    document.getElementById("main")?.scrollTo(0, 0);
  }, [place]);
  return html`
    <div class="frame">
      <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to content</a>
      <${Head} menuOpen=${menuOpen} onMenu=${() => setMenuOpen(!menuOpen)} />
      <${Navigation} open=${menuOpen} onChoice=${() => setMenuOpen(false)} />
      <main class="main" id="main" tabindex="-1"><${Bounded} key=${place} view=${View} parts=${parts} /></main>
    </div>
    <${DialogHost} />
    <${Toasts} />
  `;
}

function App() {
  if (user.value === undefined) {
    return null;
  }
  return user.value === null ? html`<${SignIn} key=${notice.value} />` : html`<${Frame} />`;
}

installKeys();
discover().then(resume, () => {
  document.body.textContent = "The broker does not answer. Reload the page to try again.";
}).then(() => render(html`<${App} />`, document.body));


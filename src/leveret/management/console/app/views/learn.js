// Lessons that run against the broker.

import { path, withQuery } from "../api.js";
import { useResource } from "../data.js";
import { agree, count, plural } from "../format.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { execute, namesOf, queueNow, READING, remove, startingWith } from "../learn/operations.js";
import { LESSONS } from "../learn/lessons.js";
import { beginning, forget, fullName, isDone, objectsOf, progress, setDone, setProgress } from "../learn/progress.js";
import { refresh } from "../live.js";
import { link, route } from "../route.js";
import { hasRoles, isReadOnly, mayReadPayloads } from "../session.js";
import { CopyAs } from "../ui/copy.js";
import { confirmChange } from "../ui/dialog.js";
import { Text } from "../ui/form.js";
import { VhostChoice } from "../ui/list.js";
import { Badge, Failure, Note, Panel, QueueLink, Title, toast } from "../ui/parts.js";
import { useRoles } from "../ui/roles.js";
import { SmallTable } from "../ui/table.js";

// Milliseconds between two checks of a step that waits.
const CHECK_INTERVAL = 300;

const locationOf = (lesson, step) => link(["learn", lesson.id], { step: step?.id });
const doneOf = (lesson) => lesson.steps.filter((step) => isDone(lesson, step)).length;

const Permission = () => isReadOnly() && html`<${Note}>Your user has the tag read-only and may change nothing. You can read the lessons, but not run them.<//>`;

/** Whether one of some steps publishes to the default exchange. */
const isDirect = (steps) =>
  steps.some((step) => step.operations(fullName, step.ask?.example).some(([kind, { exchange }]) => kind === "message" && exchange === ""));

/** Returns the function `allows(steps)`: whether the user may run steps of a lesson. `allows.isKnown` is false until the API has answered. */
function useAllowed(lesson) {
  const { queues, exchanges } = objectsOf(lesson);
  const may = useRoles(progress.value.vhost, ["", ...queues, ...exchanges]);
  const owns = (name) => ["configure", "write", "read"].every((permission) => may(name, "administrator", permission));
  const allows = (steps) => [...queues, ...exchanges].every(owns) && (!isDirect(steps) || may("", "operator", "write"));
  return Object.assign(allows, { isKnown: may.isKnown });
}

const Needs = ({ lesson }) => html`
  <${Note}>
    Your user needs ${hasRoles() ? "the role administrator" : "the permissions configure, write and read"} for names that begin with <code>${beginning()}</code>
    ${isDirect(lesson.steps) && `, and ${hasRoles() ? "the role operator" : "the permission write"} for the default exchange, amq.default`}.
    <a href=${link(["learn"])}>Choose a vhost and a prefix</a>
  <//>
`;

export function LearnView() {
  const { vhost, prefix } = progress.value;
  const state = [{ prefix }, (_, text) => setProgress({ prefix: text, done: [] })];
  return html`
    <${Title} title="Learn" />
    <p class="muted">Each lesson takes some minutes. Its steps run at this broker, with queues and exchanges of its own.</p>
    <${Permission} />
    <ul class="lessons">
      ${LESSONS.map((lesson) => {
        const done = doneOf(lesson);
        const next = lesson.steps.find((step) => !isDone(lesson, step));
        return html`
          <li key=${lesson.id} class="panel">
            <div class="body">
              <h2><a href=${locationOf(lesson, next)} data-row>${lesson.title}</a></h2>
              <p>${lesson.summary}</p>
              <p class="small muted">${done ? `${done} of ${plural(lesson.steps.length, "step")} ${agree(done, "is", "are")} done` : plural(lesson.steps.length, "step")}</p>
            </div>
          </li>
        `;
      })}
    </ul>
    <${Panel} title="Where lessons run">
      <div class="form">
        <div class="pair">
          <label class="field"><span>Vhost</span><${VhostChoice} required value=${vhost} onChange=${(name) => setProgress({ vhost: name, done: [] })} /></label>
          <${Text} label="Prefix of names" name="prefix" state=${state} maxlength="100" hint=${`The names begin with ${beginning()}. Your user needs the permissions configure, write and read for them`} />
        </div>
        <p class="small muted">Unused queues of the lessons are deleted after 30 minutes, except the stream. Clean up a lesson before you change the vhost or the prefix.</p>
      </div>
    <//>
  `;
}

export function LessonView({ parts: [, id] }) {
  const lesson = LESSONS.find((item) => item.id === id);
  if (!lesson) {
    return html`<${Title} title="Not found" /><${Note}>There is no lesson '${id}'. <a href=${link(["learn"])}>Lessons</a><//>`;
  }
  return html`<${Lesson} lesson=${lesson} />`;
}

function Lesson({ lesson }) {
  const wanted = route.value.query.step;
  const index = Math.max(0, lesson.steps.findIndex(({ id }) => id === wanted));
  const step = lesson.steps[index];
  const allows = useAllowed(lesson);
  return html`
    <${Title}
      crumb=${html`<a href=${link(["learn"])}>Learn</a>`}
      title=${lesson.title}
      badges=${doneOf(lesson) === lesson.steps.length && html`<${Badge} tone="good">done<//>`}
      actions=${html`<button disabled=${!allows([])} onClick=${() => cleanUp(lesson)}>Clean up…</button>`}
    />
    <nav class="tabs" aria-label="Steps">
      ${lesson.steps.map(
        (item, number) => html`
          <a key=${item.id} href=${locationOf(lesson, item)} aria-current=${item === step ? "step" : undefined}>
            ${number + 1}. ${item.title}${isDone(lesson, item) && html` <span aria-label="done">✓</span>`}
          </a>
        `,
      )}
    </nav>
    <${Permission} />
    ${allows.isKnown && !allows(lesson.steps) && !isReadOnly() && html`<${Needs} lesson=${lesson} />`}
    <div class="grid">
      <${Step} allows=${allows} key=${`${lesson.id} ${step.id}`} lesson=${lesson} step=${step} index=${index} />
      <div class="column">
        <${Objects} lesson=${lesson} />
        <${Code} step=${step} />
      </div>
    </div>
  `;
}

function cleanUp(lesson) {
  const { vhost } = progress.value;
  const objects = objectsOf(lesson);
  confirmChange({
    title: "Clean up",
    text: html`Deletes the queues and exchanges of this lesson with their messages: ${[...objects.queues, ...objects.exchanges].map((name) => html`<code>${name}</code> `)}. You can then start over.`,
    label: "Delete objects",
    change: async () => {
      await remove(vhost, beginning(), objects);
      forget(lesson);
    },
    done: `Cleaned up '${lesson.title}'`,
  });
}

/** Reads the queues of a lesson that exist, by their names without the prefix. */
async function readQueues(lesson, vhost) {
  const existing = new Set(await namesOf("queues", vhost, beginning()));
  const names = lesson.queues.filter((short) => existing.has(fullName(short)));
  return Object.fromEntries(await Promise.all(names.map(async (short) => [short, await queueNow(vhost, fullName(short))])));
}

/** Runs a step, and returns its outcome. Throws `ApiError`. */
async function run(lesson, step, answer) {
  const { vhost } = progress.value;
  const before = await readQueues(lesson, vhost);
  const results = await execute(vhost, step.operations(fullName, answer));
  const deadline = Date.now() + 1000 * (step.within ?? 0);
  for (;;) {
    const queues = await readQueues(lesson, vhost);
    const gained = Object.fromEntries(Object.entries(queues).map(([short, queue]) => [short, queue.messages_ready - (before[short]?.messages_ready ?? 0)]));
    const outcome = step.check({ results, queues, gained }, answer);
    if (!outcome.wait || Date.now() >= deadline) {
      return outcome;
    }
    await new Promise((resolve) => {
      setTimeout(resolve, CHECK_INTERVAL);
    });
  }
}

/** Begins a lesson anew, and runs the steps before one. Throws `ApiError`. */
async function prepare(lesson, index) {
  const { vhost } = progress.value;
  await remove(vhost, beginning(), objectsOf(lesson));
  for (const step of lesson.steps.slice(0, index)) {
    await execute(vhost, step.operations(fullName, step.ask?.example));
  }
}

function Step({ lesson, step, index, allows }) {
  const [answer, setAnswer] = useState(step.ask?.kind === "many" ? [] : "");
  const [outcome, setOutcome] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const heading = useRef(null);
  useEffect(() => {
    if (route.value.query.step) {
      heading.current.focus();
    }
  }, []);
  const isHidden = !mayReadPayloads() && step.operations(fullName, step.ask?.example).some(([kind]) => READING.has(kind));

  async function attempt(action) {
    setBusy(true);
    setError(null);
    setOutcome(null);
    try {
      await action();
    } catch (failure) {
      setError(failure);
    }
    refresh();
    setBusy(false);
  }
  function submit(event) {
    event.preventDefault();
    attempt(async () => {
      const found = await run(lesson, step, answer);
      setOutcome(found);
      if (found.right) {
        setDone(lesson, step);
      }
    });
  }
  const repair = () =>
    attempt(async () => {
      await prepare(lesson, index);
      toast(index ? "The steps before were run" : "The lesson begins anew");
    });
  const next = lesson.steps[index + 1];
  return html`
    <section class="panel" aria-labelledby="step">
      <header><h2 id="step" ref=${heading} tabindex="-1">${index + 1}. ${step.title}</h2></header>
      <div class="body">
        ${step.text(fullName)}
        <form class="form" onSubmit=${submit}>
          ${step.ask && html`<${Question} ask=${step.ask} answer=${answer} setAnswer=${setAnswer} />`}
          ${isHidden && html`<${Note}>Your user has the tag no-payloads, and this step reads messages.<//>`}
          <div class="end"><button class="primary" disabled=${busy || !allows([step]) || isHidden}>${step.label}</button></div>
          <div role="status">${outcome && html`<${Outcome} outcome=${outcome} asks=${Boolean(step.ask)} />`}</div>
          <${Failure} error=${error} />
          ${(error?.missing || (outcome && !outcome.right)) && html`<p class="small">If the queues do not have what the step expects: <button type="button" class="link" disabled=${busy || !allows(lesson.steps.slice(0, index))} onClick=${repair}>Prepare this step</button> deletes the objects of the lesson and runs the steps before.</p>`}
        </form>
        ${outcome?.right && (next ? html`<p><a href=${locationOf(lesson, next)}>Next: ${next.title}</a></p>` : html`<p>The lesson is done. <button class="link" onClick=${() => cleanUp(lesson)}>Clean up…</button></p><p><a href=${link(["learn"])}>Other lessons</a></p>`)}
      </div>
    </section>
  `;
}

function Outcome({ outcome: { right, text }, asks }) {
  const judgement = asks ? `${right ? "Right." : "Not what you expected."} ` : "";
  return html`<${Note} tone=${right ? "" : "warn"}>${judgement}${text}<//>`;
}

function Question({ ask: { kind, label, options }, answer, setAnswer }) {
  if (kind === "text" || kind === "number") {
    const fields = [{ answer }, (_, text) => setAnswer(text)];
    return html`<${Text} label=${label} name="answer" type=${kind} min=${kind === "number" ? "0" : undefined} required maxlength="200" state=${fields} />`;
  }
  function choose(value, checked) {
    if (kind === "one") {
      setAnswer(value);
    } else {
      setAnswer(checked ? [...answer, value] : answer.filter((item) => item !== value));
    }
  }
  return html`
    <fieldset class="question">
      <legend>${label}</legend>
      ${options().map(
        ([value, text]) => html`
          <label class="check" key=${value}>
            <input type=${kind === "one" ? "radio" : "checkbox"} name="answer" value=${value} required=${kind === "one"} checked=${kind === "one" ? answer === value : answer.includes(value)} onChange=${(event) => choose(value, event.target.checked)} />
            <span>${text}</span>
          </label>
        `,
      )}
    </fieldset>
  `;
}

const QUEUE_COLUMNS = [
  { id: "name", title: "Queue", cell: ({ vhost, name }) => html`<${QueueLink} vhost=${vhost} name=${name} />` },
  { id: "messages_ready", title: "Ready", width: 80, num: true, cell: (row) => count(row.messages_ready) },
  { id: "messages_unacknowledged", title: "Unacked", width: 90, num: true, cell: (row) => count(row.messages_unacknowledged) },
  { id: "consumers", title: "Consumers", width: 100, num: true, rank: 1, cell: (row) => count(row.consumers) },
];

/** The queues of a lesson, live. */
function Objects({ lesson }) {
  const { vhost } = progress.value;
  const names = objectsOf(lesson).queues;
  const parameters = { ...startingWith(beginning()), columns: "vhost,name,messages_ready,messages_unacknowledged,consumers" };
  const { value, error } = useResource(withQuery(path("queues", vhost), parameters));
  const rows = (value?.items ?? []).filter(({ name }) => names.includes(name));
  return html`
    <${Panel} title="Queues of this lesson" flush>
      <${Failure} error=${error?.missing ? null : error} />
      <${SmallTable} label="Queues of this lesson" rows=${rows} columns=${QUEUE_COLUMNS} keyOf=${(row) => row.name} initial="name" loading=${!value && !error} empty="No queue exists yet." />
    <//>
  `;
}

/** The step as a program. */
function Code({ step }) {
  const { vhost } = progress.value;
  const steps = step.operations(fullName, step.ask?.example);
  return html`<${Panel} title="The same in code"><${CopyAs} kind="program" object=${{ vhost, steps }} first="python" /><//>`;
}

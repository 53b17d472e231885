// The live tail of a queue or an exchange: messages as they arrive.

import { send, serverEvents, withQuery } from "../api.js";
import { agree, count, plural, time } from "../format.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { route, setQuery } from "../route.js";
import { MessageList } from "./browser.js";
import { useFields } from "./form.js";
import { Message } from "./messages.js";
import { Failure, Note, Panel } from "./parts.js";
import { conditions, SearchFields, searchOf, searchQuery } from "./search.js";

// Messages that are shown, and bytes of their payloads.
const MAX_SHOWN = 200;
const TRUNCATE = 16384;
const NONE = { examined: 0, skipped: 0, omitted: 0, dropped: 0 };

/**
 * Args (as properties):
 *   queue: The queue, or an exchange with its vhost.
 *   target: The path of the live tail.
 */
export function LiveTail({ queue, target }) {
  const state = useFields(searchOf(route.value.query));
  const [values] = state;
  const [following, setFollowing] = useState(false);
  const [connected, setConnected] = useState(false); // the broker reports all messages from now on
  const [messages, setMessages] = useState([]); // the newest first
  const [counts, setCounts] = useState(NONE);
  const [chosen, setChosen] = useState(null); // the number of a message
  const [error, setError] = useState(null);
  const controller = useRef(null);
  useEffect(() => () => controller.current?.abort(), [target]);

  async function follow(signal) {
    const { where, selector } = conditions(values);
    const parameters = { where: where.length > 0 ? JSON.stringify(where) : "", selector, truncate: TRUNCATE };
    const response = await send("GET", withQuery(target, parameters), { signal, headers: { accept: "text/event-stream" } });
    setConnected(true);
    let number = 0;
    for await (const { name, data } of serverEvents(response.body)) {
      if (name === "message") {
        number += 1;
        const message = { ...data, id: number, place: data.id };
        setMessages((old) => [message, ...old.slice(0, MAX_SHOWN - 1)]);
      } else if (name === "counts") {
        setCounts(data);
      } else if (name === "dropped") {
        setError(new Error(data.reason));
      }
    }
  }
  async function start(event) {
    event.preventDefault();
    setQuery(searchQuery(values));
    controller.current?.abort();
    const { signal } = (controller.current = new AbortController());
    setFollowing(true);
    setConnected(false);
    setError(null);
    setMessages([]);
    setCounts(NONE);
    setChosen(null);
    try {
      await follow(signal);
    } catch (failure) {
      if (signal.aborted) {
        return;
      }
      setError(failure);
    }
    setFollowing(false);
  }
  function stop() {
    controller.current?.abort();
    setFollowing(false);
  }

  const index = Math.max(messages.findIndex(({ id }) => id === chosen), 0);
  const message = messages[index];
  const leftOut = [
    counts.omitted > 0 && `${count(counts.omitted)} that match ${agree(counts.omitted, "was", "were")} left out: they arrive too fast`,
    counts.dropped > 0 && `${count(counts.dropped)} ${agree(counts.dropped, "was", "were")} not looked at: too many arrived`,
    counts.skipped > 0 && `skipped ${count(counts.skipped)}, whose JSON is too large`,
  ].filter(Boolean);
  return html`
    <${Panel} title="Messages as they arrive">
      <form class="form" onSubmit=${start} role="search">
        <div class="pair compact"><${SearchFields} state=${state} /></div>
        <div class="row">
          <button class="primary">${following ? "Follow with this search" : "Follow"}</button>
          <button type="button" disabled=${!following} onClick=${stop}>Stop</button>
          <span class="muted small">Messages go where they would go anyway. The last ${MAX_SHOWN} are shown.</span>
        </div>
      </form>
    <//>
    <${Failure} error=${error} />
    ${((following && connected) || counts.examined > 0) &&
    html`<p class="muted" role="status">${[`${following ? "Following" : "Stopped"}: looked at ${plural(counts.examined, "message")}`, ...leftOut].join("; ")}</p>`}
    ${following && connected && messages.length === 0 && html`<${Note}>No message ${counts.examined > 0 ? "matches" : "has arrived"} so far.<//>`}
    ${message &&
    html`
      <div class="messages">
        <${MessageList} messages=${messages} chosen=${index} setChosen=${(at) => setChosen(messages[at].id)} selected=${new Set()} />
        <${Message}
          key=${message.id}
          message=${message}
          queue=${queue}
          facts=${[
            ["Arrived", time(message.time)],
            ["Id in the queue", message.place !== null && String(message.place)],
            ["Protocol", `AMQP ${message.protocol}`],
          ]}
        />
      </div>
    `}
  `;
}

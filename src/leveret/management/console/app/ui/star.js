// The star that makes a queue, a stream or an exchange a favourite.

import { isFavourite, setFavourite } from "../favourites.js";
import { exchangeName } from "../format.js";
import { html } from "../html.js";
import { toast } from "./parts.js";

/** `kind` is "queues" or "exchanges". */
export function Star({ kind, vhost, name }) {
  const pressed = isFavourite(kind, vhost, name);
  function toggle() {
    try {
      setFavourite(kind, vhost, name, !pressed);
    } catch (error) {
      toast(error.message, "bad");
    }
  }
  const label = `Favourite ${kind === "exchanges" ? exchangeName(name) : name}`;
  return html`<button class="star" type="button" aria-pressed=${pressed} aria-label=${label} title=${pressed ? "Remove from the favourites" : "Add to the favourites"} onClick=${toggle}></button>`;
}

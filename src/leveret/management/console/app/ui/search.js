// The fields of a search in messages: a condition, and a selector.

import { html } from "../html.js";
import { Choice, Text } from "./form.js";

// Fields of a search; those that end with a dot need a name.
const FIELDS = [
  ["body", "the body"],
  ["body.", "a value in a JSON body"],
  ["headers.", "a header"],
  ["routing_key", "the routing key"],
  ["exchange", "the exchange"],
  ["correlation_id", "the correlation id"],
  ["message_id", "the message id"],
  ["type", "the type"],
  ["content_type", "the content type"],
  ["reply_to", "the reply-to"],
  ["user_id", "the user id"],
  ["app_id", "the app id"],
];
const MATCHES = [
  ["contains", "contains"],
  ["equals", "is"],
  ["not_equals", "is not"],
  ["less", "is less than"],
  ["less_or_equal", "is at most"],
  ["greater", "is greater than"],
  ["greater_or_equal", "is at least"],
  ["regex", "matches (RE2)"],
  ["exists", "exists"],
];

/** Returns the values of the fields that a location holds. */
export const searchOf = (query) => ({
  field: query.field ?? "body",
  name: query.key ?? "",
  match: query.match ?? "contains",
  value: query.value ?? "",
  selector: query.selector ?? "",
});

/** Whether the fields hold a condition, beside the selector. */
export const hasCondition = ({ match, value }) => match === "exists" || value !== "";

/** Returns the parameters of a location that hold the values of the fields. */
export const searchQuery = ({ selector, ...values }) => {
  const { field, name, match, value } = hasCondition(values) ? values : { field: "", match: "", value: "" };
  return { field, key: field.endsWith(".") ? name : "", match, value, selector };
};

// Conditions that compare a number with numbers, and another text with texts.
const ORDERS = new Set(["less", "less_or_equal", "greater", "greater_or_equal"]);

/** Returns the conditions of a search, as requests have them. A path in a JSON body may begin with a bracket. */
export function conditions({ group = [], field, name, match, value, selector }) {
  const whole = field === "body." && name.startsWith("[") ? `body${name}` : field.endsWith(".") ? `${field}${name}` : field;
  const compared = ORDERS.has(match) && value.trim() && Number.isFinite(Number(value)) ? Number(value) : value;
  const own = match === "exists" ? { field: whole, match } : { field: whole, match, value: compared };
  return { where: hasCondition({ match, value }) ? [...group, own] : group, selector };
}

export function SearchFields({ state }) {
  const [values] = state;
  return html`
    <${Choice} label="Search in" name="field" state=${state} options=${FIELDS} />
    ${values.field.endsWith(".") && html`<${Text} label=${values.field === "headers." ? "Header" : "Path"} name="name" state=${state} required=${hasCondition(values)} maxlength="255" placeholder=${values.field === "body." ? "items[0].id" : undefined} />`}
    <${Choice} label="Condition" name="match" state=${state} options=${MATCHES} />
    ${values.match !== "exists" && html`<${Text} label="Text" name="value" state=${state} placeholder="all messages" />`}
    <${Text} label="Selector" name="selector" state=${state} maxlength="4096" placeholder="color = 'red'" title="A JMS message selector, as consumers use it: color = 'red' AND weight > 2500" />
  `;
}

// What the forms for accounts and for users share: controls, the confirmation of changes, and the report.
import { h } from "./dom.js";
import { tr } from "./language.js";
import { button, dialog, facts, note } from "./parts.js";

export const HIDDEN = "********";
export const OWN = tr`This is the account of this console, for all of its users. After the change, the console may lose its access to the brokers.`;

/** A small button; `name` is its complete name for screen readers. */
export function small(text, name, onclick) {
  const element = button(text, onclick, "quiet small");
  element.setAttribute("aria-label", name);
  return element;
}

export const worded = (value) => (Array.isArray(value) ? value.join(", ") : value === true ? tr`yes` : value === false ? tr`no` : value) || "–";

export function select(options, value) {
  const element = h("select", {}, options.map((one) => h("option", { value: one }, one)));
  element.value = value;
  return element;
}

/** Show changes with the present and the new values, and apply them. The present value of something new is null. */
export function confirmChanges({ title, brokers, rows, warning = "", act }) {
  return dialog({
    title, action: tr`Apply`, danger: true,
    content: [
      warning ? h("p", { class: "trouble warn" }, warning) : null,
      facts([{ what: tr`Brokers`, now: null, then: brokers.join(", ") }, ...rows].map((row) => [row.what, row.now === null ? row.then : h("span", {}, row.now, h("span", { class: "arrow" }, " → "), h("strong", {}, row.then))])),
    ],
    act,
  });
}

/** Report a change, and the brokers that refused it. */
export function finished(view, done, text) {
  if (!done) return;
  note(text);
  for (const [broker, error] of Object.entries(done.failed)) note(`${broker}: ${error.text}`, "bad");
  view.again();
}

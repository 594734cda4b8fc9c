// A page of dead letters, of a group or of a Spark query: view, select and resend them.
import { post } from "../api.js";
import { h, originPath, originPlace } from "../dom.js";
import { count } from "../format.js";
import { button, dialog, head, note, Table, trouble } from "../parts.js";
import { MessagePages, messageColumns, messageKey } from "./messages.js";

const MOST = 200; // per request

/** `topic`: where they are; `resend`: the path that resends them; `explain(messages)`: text of the confirmation. */
export function letters(view, { title, sub = null, topic, resend, explain, actions, columns, empty }) {
  view.title(title);
  view.again = () => {};
  const chosen = new Map();
  const failures = h("div");
  const go = button("Resend", async () => {
    const messages = [...chosen.values()];
    const done = await dialog({
      title: "Resend", action: "Resend", content: [h("p", {}, explain(messages)), h("p", {}, "The dead letters also stay here until they expire.")],
      act: () => post(resend, { messages: messages.map(({ topic, broker, queue, offset }) => ({ topic, broker, queue, offset })) }),
    });
    if (!done) return;
    note(done.done, done.failures.length ? "bad" : "good");
    failures.replaceChildren(...done.failures.map((f) => trouble(f.error, { who: `${f.broker} · ${f.queue} · ${f.offset}` })));
    chosen.clear();
    for (const box of table.element.querySelectorAll("td input[type=checkbox]")) box.checked = false;
    show();
  }, "primary change");
  const show = () => {
    go.disabled = chosen.size === 0 || chosen.size > MOST;
    go.textContent = chosen.size > 1 ? `Resend ${count(chosen.size)}` : "Resend";
    go.title = chosen.size > MOST ? `Select at most ${MOST}.` : "";
    all.checked = table.rows.size > 0 && [...table.rows.keys()].every((key) => chosen.has(key));
  };
  const choose = (m, is) => { if (is) chosen.set(messageKey(m), m); else chosen.delete(messageKey(m)); };
  const all = h("input", { type: "checkbox", id: "all", onchange: () => {
    const is = all.checked;
    for (const [, known] of table.rows) {
      known.line.querySelector("input[type=checkbox]").checked = is;
      choose(known.row, is);
    }
    show();
  } });
  const table = new Table({
    caption: title, key: messageKey, empty,
    columns: [
      { key: "choose", title: "", sort: false, node: (m) => h("input", { type: "checkbox", class: "change", checked: chosen.has(messageKey(m)), "aria-label": `Select the message at ${m.queue} · ${m.offset}`, onchange: (event) => { choose(m, event.target.checked); show(); } }) },
      ...columns,
    ],
  });
  const pages = new MessagePages(view, table, { what: "messages", drawn: () => show() });
  show();
  view.show(
    head(title, { sub, back: ["/dead-letters", "Dead letters"], actions: [...actions, go] }), failures,
    h("div", { class: "toolbar change" }, h("span", { class: "check" }, all, h("label", { for: "all" }, "Select all on this page"))), pages.element);
  pages.search({ topic }, history.state?.search ?? null);
}

export const areSent = (messages) => (messages.length === 1 ? "1 message is sent" : `${count(messages.length)} messages are sent`);

const [stored, keys, , , body] = messageColumns;
const origin = { key: "origin", title: "Origin", text: (m) => m.origin?.topic ?? "–", href: (m) => m.origin && originPath(m.origin), sub: (m) => (m.origin ? originPlace(m.origin) : "") };
export const groupColumns = [stored, origin, { key: "attempts", title: "Attempts", num: true, text: (m) => count(m.origin?.attempts) }, keys, body];
export const topicColumns = [stored, origin, { key: "reason", title: "Reason", text: (m) => m.origin?.reason ?? "–", tone: () => "reason", hint: (m) => m.origin?.reason, sub: (m) => (m.origin?.missing ? `It lacks ${m.origin.missing}.` : "") }, keys, body];

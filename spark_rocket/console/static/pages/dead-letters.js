// A page of dead letters, of a group or of a Spark query: view, select and resend them.
import { post } from "../api.js";
import { h, originPath, originPlace } from "../dom.js";
import { ago, count, moment } from "../format.js";
import { button, dialog, head, note, Table, trouble } from "../parts.js";
import { MessagePages, messageColumns, messageKey } from "./messages.js";
import { reasonText, tr } from "../language.js";

const MOST = 200; // per request

/** `topic`: where they are; `resend`: the path that resends them; `explain(messages)`: text of the
 * confirmation; `resent(sent, all)`: text of the result. */
export function letters(view, { title, sub = null, topic, resend, explain, resent, actions, columns, empty }) {
  view.title(title);
  view.again = () => {};
  const chosen = new Map();
  const failures = h("div");
  const go = button(tr`Resend`, async () => {
    const messages = [...chosen.values()];
    const before = messages.filter((m) => m.resent).length;
    const done = await dialog({
      title: tr`Resend`, action: tr`Resend`, content: [h("p", {}, explain(messages)), before ? h("p", { class: "trouble warn" }, tr`Of these, ${count(before)} were already resent: consumers receive them twice.`) : null, h("p", {}, tr`The dead letters also stay here until they expire.`)],
      act: () => post(resend, { messages: messages.map(({ topic, broker, queue, offset }) => ({ topic, broker, queue, offset })) }),
    });
    if (!done) return;
    note(resent(count(done.sent), count(messages.length)), done.failures.length ? "bad" : "good");
    failures.replaceChildren(...done.failures.map((f) => trouble(f.error, { who: `${f.broker} · ${f.queue} · ${f.offset}` })));
    chosen.clear();
    for (const box of table.element.querySelectorAll("td input[type=checkbox]")) box.checked = false;
    await pages.load(false); // marks them
  }, "primary change");
  const show = () => {
    go.disabled = chosen.size === 0 || chosen.size > MOST;
    go.textContent = chosen.size > 1 ? tr`Resend ${count(chosen.size)}` : tr`Resend`;
    go.title = chosen.size > MOST ? tr`Select at most ${MOST}.` : "";
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
      { key: "choose", title: "", sort: false, node: (m) => h("input", { type: "checkbox", class: "change", checked: chosen.has(messageKey(m)), "aria-label": tr`Select the message at ${m.queue} · ${m.offset}`, onchange: (event) => { choose(table.rows.get(messageKey(m)).row, event.target.checked); show(); } }) },
      ...columns,
    ],
  });
  const pages = new MessagePages(view, table, { drawn: () => show() });
  show();
  view.show(
    head(title, { sub, back: ["/dead-letters", tr`Dead letters`], actions: [...actions, go] }), failures,
    h("div", { class: "toolbar change" }, h("span", { class: "check" }, all, h("label", { for: "all" }, tr`Select all on this page`))), pages.element);
  pages.search({ topic }, history.state?.search ?? null);
}

const [stored, keys, , , body] = messageColumns;
const origin = { key: "origin", title: tr`Origin`, text: (m) => m.origin?.topic ?? "–", href: (m) => m.origin && originPath(m.origin), sub: (m) => (m.origin ? originPlace(m.origin) : "") };
const resentAt = { key: "resent", title: tr`Resent`, text: (m) => (m.resent ? ago(m.resent) : ""), tone: (m) => (m.resent ? "pill info" : ""), hint: (m) => (m.resent ? moment(m.resent) : "") };
export const groupColumns = [stored, resentAt, origin, { key: "attempts", title: tr`Attempts`, num: true, text: (m) => count(m.origin?.attempts) }, keys, body];
export const topicColumns = [stored, resentAt, origin, { key: "reason", title: tr`Reason`, text: (m) => reasonText(m.origin?.reason) ?? "–", tone: () => "reason", hint: (m) => m.origin?.reason, sub: (m) => (m.origin?.missing ? tr`It lacks ${m.origin.missing}.` : "") }, keys, body];

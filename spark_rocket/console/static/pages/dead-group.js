// Dead letters of a group: view and resend them.
import { get, post } from "../api.js";
import { groupPath, h } from "../dom.js";
import { count } from "../format.js";
import { button, dialog, head, linkButton, note, Table, trouble } from "../parts.js";
import { messageColumns, messageKey } from "./messages.js";

export default function deadGroup(view) {
  const group = view.argument;
  view.title(`Dead letters of ${group}`);
  view.again = () => {};
  const chosen = new Map();
  const status = h("p", { class: "muted", "aria-live": "polite" });
  const failures = h("div");
  const resend = button("Resend", async () => {
    const messages = [...chosen.values()].map(({ topic, broker, queue, offset }) => ({ topic, broker, queue, offset }));
    const done = await dialog({
      title: "Resend", action: "Resend",
      content: h("p", {}, `${count(messages.length)} messages are sent to group ${group} only. The dead letters also stay here until they expire.`),
      act: () => post(`/api/dead-letters/${encodeURIComponent(group)}/resend`, { messages }),
    });
    if (!done) return;
    note(done.done, done.failures.length ? "bad" : "good");
    failures.replaceChildren(...done.failures.map((f) => trouble(f.error, { who: `${f.broker} · ${f.queue} · ${f.offset}` })));
    chosen.clear();
    all.checked = false;
    for (const box of table.element.querySelectorAll("td input[type=checkbox]")) box.checked = false;
    show();
  }, "primary change");
  const show = () => {
    resend.disabled = chosen.size === 0;
    resend.textContent = chosen.size > 1 ? `Resend ${count(chosen.size)}` : "Resend";
  };
  const choose = (m, is) => { if (is) chosen.set(messageKey(m), m); else chosen.delete(messageKey(m)); show(); };
  const all = h("input", { type: "checkbox", id: "all", onchange: () => {
    for (const [, known] of table.rows) {
      known.line.querySelector("input[type=checkbox]").checked = all.checked;
      choose(known.row, all.checked);
    }
  } });
  const table = new Table({
    caption: `Dead letters of ${group}`, key: messageKey, empty: "This group has no dead letters.",
    columns: [
      { key: "choose", title: "", sort: false, node: (m) => h("input", { type: "checkbox", "aria-label": `Select the message at ${m.queue} · ${m.offset}`, onchange: (event) => choose(m, event.target.checked) }) },
      ...messageColumns,
    ],
  });
  table.element.hidden = true;
  show();
  view.show(
    head(`Dead letters of ${group}`, { back: ["/dead-letters", "Dead letters"], actions: [linkButton("Group", groupPath(group)), resend] }),
    failures, h("div", { class: "toolbar" }, h("span", { class: "check" }, all, h("label", { for: "all" }, "Select all")), status), table.element);
  view.try(async () => {
    const data = await get(`/api/dead-letters/${encodeURIComponent(group)}`, { limit: 200 }, { signal: view.gone.signal });
    table.update(data.rows);
    table.element.hidden = false;
    status.textContent = data.rows.length >= data.limit ? `The newest ${count(data.rows.length)}.` : `${count(data.rows.length)} messages.`;
  });
}

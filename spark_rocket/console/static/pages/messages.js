// Message search by time, key or id.
import { get } from "../api.js";
import { h, messagePath } from "../dom.js";
import { count, moment, size, zone } from "../format.js";
import { choice, field, head, names, Table, Troubles } from "../parts.js";

const PAST = [["900000", "15 min"], ["3600000", "1 h"], ["86400000", "1 day"], ["0", "Ever"]];

export const messageColumns = [
  { key: "stored", title: "Stored", main: true, text: (m) => moment(m.stored, { millis: true }), href: messagePath, tone: () => "time", sub: (m) => `${m.broker} · ${m.queue} · ${count(m.offset)}` },
  { key: "keys", title: "Keys", text: (m) => m.keys ?? "", tone: () => "keys", hint: (m) => m.keys },
  { key: "tags", title: "Tags", text: (m) => m.tags ?? "", tone: () => "tags" },
  { key: "size", title: "Size", num: true, text: (m) => size(m.size) },
  { key: "preview", title: "Body", text: (m) => m.preview, tone: () => "body" },
];
export const messageKey = (m) => `${m.topic}/${m.broker}/${m.queue}/${m.offset}`;

export default function messages(view) {
  view.title("Messages");
  const query = view.query;
  const state = { by: query.get("by") ?? "time", past: query.get("past") ?? "0" };
  const list = names([]);
  const topic = h("input", { required: true, value: query.get("topic") ?? "", list: list.id, autocomplete: "off", spellcheck: "false" });
  const key = h("input", { value: query.get("key") ?? "", autocomplete: "off", spellcheck: "false" });
  const id = h("input", { value: query.get("id") ?? "", autocomplete: "off", spellcheck: "false" });
  const begin = h("input", { type: "datetime-local", step: 1, value: query.get("begin") ?? "" });
  const end = h("input", { type: "datetime-local", step: 1, value: query.get("end") ?? "" });
  const parts = {
    time: h("div", { class: "fields" }, choice("How long ago", "past", [...PAST, ["from", "From … to"]], state.past, (past) => { state.past = past; show(); })),
    key: field("Key", key, { hint: "A complete key or unique key." }),
    id: field("Message id", id, { hint: "The id that the producer received, or the offset id." }),
  };
  const between = h("div", { class: "fields" }, field("From", begin, { hint: zone() }), field("To", end, { hint: zone() }));
  const troubles = new Troubles();
  const status = h("p", { class: "muted", "aria-live": "polite" });
  const table = new Table({ caption: "Messages found", key: messageKey, columns: messageColumns, empty: "No messages found. Search a longer time range, or check the topic's page for messages." });
  table.element.hidden = true;
  const show = () => {
    for (const [name, part] of Object.entries(parts)) part.hidden = name !== state.by;
    between.hidden = state.by !== "time" || state.past !== "from";
    key.required = state.by === "key";
    id.required = state.by === "id";
  };
  const form = h("form", { class: "card" },
    h("div", { class: "fields" }, field("Topic", topic), list),
    choice("Search by", "by", [["time", "Time"], ["key", "Key"], ["id", "Id"]], state.by, (by) => { state.by = by; show(); }),
    parts.time, between, parts.key, parts.id,
    h("div", { class: "actions" }, h("button", { type: "submit", class: "primary" }, "Search")));
  const search = () => view.try(async () => {
    const asked = { topic: topic.value.trim(), by: state.by };
    view.remember({ ...asked, by: state.by === "time" ? "" : state.by, past: state.by === "time" && state.past !== "0" ? state.past : "", key: state.by === "key" ? key.value : "", id: state.by === "id" ? id.value : "", begin: between.hidden ? "" : begin.value, end: between.hidden ? "" : end.value });
    if (state.by === "key") asked.key = key.value.trim();
    if (state.by === "id") asked.id = id.value.trim();
    if (state.by === "time" && state.past === "from") {
      if (begin.value) asked.begin = new Date(begin.value).getTime();
      if (end.value) asked.end = new Date(end.value).getTime() + 999;
    } else if (state.by === "time" && state.past !== "0") asked.begin = Date.now() - Number(state.past);
    status.textContent = "Searching …";
    try {
      const data = await get("/api/messages", asked, { signal: view.gone.signal });
      view.alerts.replaceChildren();
      view.alerts.shown = "";
      troubles.show(Object.entries(data.failed));
      table.update(data.rows);
      table.element.hidden = false;
      status.textContent = data.rows.length >= data.limit ? `The newest ${count(data.rows.length)}.` : `${count(data.rows.length)} found.`;
    } catch (error) { status.textContent = ""; table.element.hidden = true; throw error; }
  });
  form.addEventListener("submit", (event) => { event.preventDefault(); search(); });
  show();
  view.show(head("Messages"), form, troubles.element, status, table.element);
  view.again = () => {};
  view.try(async () => list.replaceChildren(...(await get("/api/topic-names", {}, { signal: view.gone.signal })).names.map((name) => h("option", { value: name }))));
  if (topic.value) search();
}

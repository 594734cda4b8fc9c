// Message search by time, key or id. A search by time has pages; the browser keeps the position of each.
import { ask, get, timeOf } from "../api.js";
import { h, messagePath } from "../dom.js";
import { count, moment, size } from "../format.js";
import { button, choice, field, head, names, Table, timeHint, timeInput, Troubles } from "../parts.js";
import { sentences, tr } from "../language.js";

const PAST = [["900000", tr`15 min`], ["3600000", tr`1 h`], ["86400000", tr`1 day`], ["0", tr`Ever`]];

const PAGE = 50;
const MOST_STATE = 200_000; // characters of positions in the browser's history

export const messageColumns = [
  { key: "stored", title: tr`Stored`, main: true, text: (m) => moment(m.stored, { millis: true }), href: messagePath, tone: () => "time", sub: (m) => `${m.broker} · ${m.queue} · ${count(m.offset)}` },
  { key: "keys", title: tr`Keys`, text: (m) => m.keys ?? "", tone: () => "keys", hint: (m) => m.keys },
  { key: "tags", title: tr`Tags`, text: (m) => m.tags ?? "", tone: () => "tags" },
  { key: "size", title: tr`Size`, num: true, text: (m) => size(m.size) },
  { key: "preview", title: tr`Body`, text: (m) => m.preview, tone: () => "body" },
];
export const messageKey = (m) => `${m.topic}/${m.broker}/${m.queue}/${m.offset}`;

/**
 * The pages of a search by time, newest first: table, status and buttons.
 * `asked`: topic, begin, end, tags, text. Positions are cursors of the console, so later messages do not move pages.
 * The first page has the newest messages each time, and the next page begins where the shown one ends.
 */
export class MessagePages {
  constructor(view, table, { drawn = () => {} } = {}) {
    this.view = view;
    this.table = table;
    this.drawn = drawn;
    this.turn = 0;
    this.troubles = new Troubles();
    this.status = h("p", { class: "muted", "aria-live": "polite" });
    this.more = button(tr`Continue`, () => this.load(true), "primary");
    this.back = button(tr`‹ Previous`, () => this.turnTo(this.at - 1), "quiet");
    this.on = button(tr`Next ›`, () => this.turnTo(this.at + 1), "quiet");
    this.number = h("span", { class: "muted" });
    this.pager = h("div", { class: "pager" }, this.number, h("span", {}, this.more, this.back, this.on));
    this.element = h("div", { class: "pages" }, this.troubles.element, this.status, table.element, this.pager);
    this.clear();
  }

  clear() {
    this.turn += 1;
    this.table.element.hidden = this.pager.hidden = true;
    this.status.textContent = "";
    this.troubles.show([]);
  }

  /** Search from the first page, or return to the page that the browser's history has. */
  search(asked, known = null) {
    Object.assign(this, known ?? { asked, starts: [null], at: 0, total: null, lost: {} });
    return this.load(false);
  }

  turnTo(at) {
    if (at > this.at) this.starts = [...this.starts.slice(0, at), this.data.next];
    this.at = at;
    this.load(false).then(() => { if (this.view.isOpen) this.element.scrollIntoView({ block: "start" }); });
  }

  /** Load the page, or with `more` the rest of one that is not full. */
  async load(more) {
    const turn = this.turn += 1;
    const before = more ? this.data.rows : [];
    const cursor = more ? this.data.next : this.starts[this.at];
    this.status.textContent = tr`Searching …`;
    this.more.disabled = this.back.disabled = this.on.disabled = true;
    return this.view.try(async () => {
      let data;
      try {
        data = await ask("/api/messages/search", { method: "POST", body: { ...this.asked, cursor, limit: PAGE - before.length }, signal: this.view.gone.signal });
      } catch (error) {
        if (turn === this.turn) { this.clear(); }
        throw error;
      }
      if (turn !== this.turn) return;
      if (cursor === null) {
        this.total = data.total;
        this.lost = data.failed; // these brokers are not in the positions
      }
      this.data = { ...data, rows: [...before, ...data.rows] };
      this.view.alerts.replaceChildren();
      this.view.alerts.shown = "";
      this.draw();
      this.keep();
    });
  }

  draw() {
    const { rows, next, left, failed } = this.data;
    const isPart = next !== null && rows.length < PAGE;
    const isFiltered = Boolean(this.asked.tags || this.asked.text);
    const away = Object.entries({ ...this.lost, ...failed });
    this.troubles.show(away);
    this.table.update(rows);
    this.table.element.hidden = isPart && !rows.length;
    const page = count(this.at + 1);
    const found = count(rows.length);
    const status = [];
    if (next === null && this.at > 0) status.push(tr`Page ${page}, the last one:`);
    else if (next !== null) status.push(tr`Page ${page}:`);
    if (isPart) status.push(tr`${found} found so far. Searched ${count(this.total - left)} of ${count(this.total)} messages, newest first.`);
    else if (next !== null && isFiltered) status.push(tr`${found} messages, newest first. Searched ${count(this.total - left)} of ${count(this.total)} messages.`);
    else if (next !== null) status.push(tr`${found} messages, newest first. ${count(left)} older.`);
    else status.push(tr`${found} found.`);
    if (away.length) status.push(tr`Messages of ${away.map(([name]) => name).join(", ")} are missing, or are those of a slave.`);
    this.status.textContent = sentences(...status);
    this.more.hidden = !isPart;
    this.on.hidden = next === null || isPart;
    this.back.hidden = this.at === 0;
    this.more.disabled = this.back.disabled = this.on.disabled = false;
    this.pager.hidden = next === null && this.at === 0;
    this.number.textContent = this.pager.hidden ? "" : tr`Page ${count(this.at + 1)}`;
    this.drawn();
  }

  /** Keep the position in the browser's history: a message's page and back leads to the same page. */
  keep() {
    const known = { asked: this.asked, starts: this.starts, at: this.at, total: this.total, lost: this.lost };
    const fits = this.at > 0 && JSON.stringify(known).length < MOST_STATE;
    history.replaceState(fits ? { search: known } : null, "", location.href);
  }
}

export default function messages(view) {
  view.title(tr`Messages`);
  const known = history.state?.search ?? null;
  const query = view.query;
  const state = { by: query.get("by") ?? "time", past: query.get("past") ?? "0" };
  const list = names([]);
  const text = (name) => h("input", { value: query.get(name) ?? "", autocomplete: "off", spellcheck: "false" });
  const [topic, key, id, tags, part] = ["topic", "key", "id", "tags", "text"].map(text);
  topic.required = true;
  topic.setAttribute("list", list.id);
  const begin = timeInput(query.get("begin") ?? "");
  const end = timeInput(query.get("end") ?? "");
  const between = h("div", { class: "fields" }, field(tr`From`, begin, { hint: timeHint() }), field(tr`To`, end, { hint: timeHint() }));
  const parts = {
    time: h("div", {},
      choice(tr`How long ago`, "past", [...PAST, ["from", tr`From … to`]], state.past, (past) => { state.past = past; show(); }), between,
      h("div", { class: "fields" },
        field(tr`Tags`, tags, { hint: tr`Complete tags, several with ||. Without tags: all messages.` }),
        field(tr`Text in the body`, part, { hint: tr`As it is in the body, with upper and lower case.` }))),
    key: field(tr`Key`, key, { hint: tr`A complete key or unique key.` }),
    id: field(tr`Message id`, id, { hint: tr`The id that the producer received, or the offset id.` }),
  };
  const status = h("p", { class: "muted", "aria-live": "polite" });
  const troubles = new Troubles();
  const make = () => new Table({ caption: tr`Messages found`, key: messageKey, columns: messageColumns, empty: tr`No messages found. Search a longer time range, or check the topic's page for messages.` });
  const pages = new MessagePages(view, make());
  const table = make();
  table.element.hidden = true;
  const show = () => {
    for (const [name, each] of Object.entries(parts)) each.hidden = name !== state.by;
    between.hidden = state.past !== "from";
    key.required = state.by === "key";
    id.required = state.by === "id";
  };
  const form = h("form", { class: "card" },
    h("div", { class: "fields" }, field(tr`Topic`, topic), list),
    choice(tr`Search by`, "by", [["time", tr`Time`], ["key", tr`Key`], ["id", tr`Id`]], state.by, (by) => { state.by = by; show(); }),
    parts.time, parts.key, parts.id,
    h("div", { class: "actions" }, h("button", { type: "submit", class: "primary" }, tr`Search`)));
  const byTime = async () => {
    const asked = { topic: topic.value.trim(), tags: tags.value.trim(), text: part.value };
    if (state.past === "from") {
      const signal = view.gone.signal;
      if (begin.value) asked.begin = await timeOf(begin.value, signal);
      if (end.value) asked.end = await timeOf(end.value, signal);
    } else if (state.past !== "0") asked.begin = Date.now() - Number(state.past);
    return asked;
  };
  const byName = () => view.try(async () => {
    status.textContent = tr`Searching …`;
    try {
      const data = await get("/api/messages", { topic: topic.value.trim(), by: state.by, ...(state.by === "key" ? { key: key.value.trim() } : { id: id.value.trim() }) }, { signal: view.gone.signal });
      view.alerts.replaceChildren();
      view.alerts.shown = "";
      troubles.show(Object.entries(data.failed));
      table.update(data.rows);
      table.element.hidden = false;
      status.textContent = data.rows.length >= data.limit ? tr`The newest ${count(data.rows.length)}.` : tr`${count(data.rows.length)} found.`;
    } catch (error) { status.textContent = ""; throw error; }
  });
  const search = (again = null) => {
    const is = { [state.by]: true, from: state.by === "time" && state.past === "from" };
    view.remember({
      topic: topic.value.trim(), by: is.time ? "" : state.by, past: is.time && state.past !== "0" ? state.past : "", key: is.key ? key.value : "", id: is.id ? id.value : "",
      begin: is.from ? begin.value : "", end: is.from ? end.value : "", tags: is.time ? tags.value.trim() : "", text: is.time ? part.value : "",
    });
    table.element.hidden = true;
    status.textContent = "";
    troubles.show([]);
    pages.clear();
    if (!is.time) byName();
    else if (again) pages.search(null, again);
    else {
      const { turn } = pages;
      view.try(async () => {
        const asked = await byTime();
        if (turn === pages.turn) pages.search(asked);
      });
    }
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); search(); });
  show();
  view.show(head(tr`Messages`), form, troubles.element, status, table.element, pages.element);
  view.again = () => {};
  view.try(async () => list.replaceChildren(...(await get("/api/topic-names", {}, { signal: view.gone.signal })).names.map((name) => h("option", { value: name }))));
  if (topic.value) search(known);
}

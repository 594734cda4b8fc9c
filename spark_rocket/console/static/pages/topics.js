// Topics: search, sort, create.
import { get, post } from "../api.js";
import { h, put, topicPath } from "../dom.js";
import { ago, brief, count, moment, rate, size } from "../format.js";
import { button, choice, dialog, field, head, note, pager, Table, Troubles } from "../parts.js";
import { tr } from "../language.js";

const KINDS = [["user", tr`User`], ["retry", tr`Retry`], ["dlq", tr`Dead letters`], ["system", tr`System`]];
const TYPES = ["", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"];

export default function topics(view) {
  view.title(tr`Topics`);
  const state = { search: view.query.get("search") ?? "", kind: view.query.get("kind") ?? "user", sort: view.query.get("sort") ?? "name", desc: view.query.get("desc") === "1", page: Number(view.query.get("page") ?? 0) || 0 };
  const change = (values) => {
    Object.assign(state, "page" in values ? values : { ...values, page: 0 });
    view.remember({ ...state, kind: state.kind === "user" ? "" : state.kind, sort: state.sort === "name" ? "" : state.sort, desc: state.desc ? 1 : "", page: state.page || "" });
    view.again();
  };
  const search = h("input", { type: "search", placeholder: tr`Find a topic …`, "aria-label": tr`Find a topic`, value: state.search });
  search.addEventListener("input", () => change({ search: search.value }));
  const none = h("span");
  const troubles = new Troubles();
  const pages = pager((page) => change({ page }));
  const table = new Table({
    caption: tr`Topics`, key: (t) => t.name,
    onSort: (key, now) => change({ sort: key, desc: now?.key === key ? !now.desc : key !== "name" }),
    empty: h("p", {}, none, " ", button(tr`Create a topic`, () => create(view), "quiet change")),
    columns: [
      { key: "name", title: tr`Topic`, main: true, text: (t) => t.name, href: (t) => topicPath(t.name), sub: (t) => (t.type && t.type !== "UNSPECIFIED" ? t.type : "") },
      { key: "queues", title: tr`Queues`, num: true, text: (t) => count(t.queues), sub: (t) => (t.brokers.length > 1 ? tr`${t.brokers.length} brokers` : "") },
      { key: "messages", title: tr`Messages`, num: true, text: (t) => brief(t.messages), hint: (t) => count(t.messages) },
      { key: "bytes", title: tr`Size`, num: true, text: (t) => (t.bytes === null ? "–" : `≈ ${size(t.bytes)}`), hint: () => tr`Estimated from the last messages` },
      { key: "rate", title: tr`In`, num: true, text: (t) => rate(t.rate) },
      { key: "lastUpdate", title: tr`Last message`, num: true, text: (t) => ago(t.lastUpdate), hint: (t) => moment(t.lastUpdate) },
    ],
  });
  view.show(
    head(tr`Topics`, { actions: [button(tr`New topic`, () => create(view), "primary change")] }), troubles.element,
    h("div", { class: "toolbar" }, search, choice(tr`Kind`, "kind", KINDS, state.kind, (kind) => change({ kind }))), table.element, pages.element);
  view.poll(async () => {
    const data = await get("/api/topics", { ...state, desc: state.desc ? 1 : "" }, { signal: view.gone.signal });
    if (!data.known && !data.trouble && !data.rows.length) return 300;
    troubles.show([...(data.trouble ? [[tr`Cluster`, data.trouble]] : []), ...Object.entries(data.failed)]);
    view.cluster(data);
    put(none, Object.keys(data.failed).length ? tr`No topics on the available brokers.` : state.search ? tr`No matching topics.` : state.kind === "user" ? tr`No topics yet. A topic appears with its first message if brokers create topics automatically.` : tr`No topics of this kind.`);
    table.showSort(state.sort, state.desc);
    table.update(data.rows);
    pages.show(data, (n) => tr`${n} topics`);
    return data.known ? data.refresh : 500;
  });
}

/** The form for a new topic, or with `known` for changing one. */
export async function create(view, known = null) {
  const input = (type, value, more = {}) => h("input", { type, value, ...more });
  const name = input("text", known?.topic ?? "", { required: true, autocomplete: "off", spellcheck: "false", pattern: "[%\\|a-zA-Z0-9_\\-]+", maxlength: 127, title: tr`Letters, digits, %, |, _ and -` });
  if (known) name.readOnly = true;
  const queues = input("number", known?.queues ?? 8, { min: 1, max: 1024, required: true });
  const writes = input("number", known?.writeQueues ?? "", { min: 0, max: 1024, placeholder: tr`the same` });
  const type = h("select", {}, TYPES.map((t) => h("option", { value: t }, t || tr`any`)));
  type.value = known?.type && known.type !== "UNSPECIFIED" ? known.type : "";
  const perm = h("select", {}, [["6", tr`read and write`], ["4", tr`read only`], ["2", tr`write only`]].map(([value, text]) => h("option", { value }, text)));
  perm.value = String(known?.perm ?? 6);
  const order = h("input", { type: "checkbox", checked: known?.order ?? false });
  const done = await dialog({
    title: known ? tr`Change ${known.topic}` : tr`New topic`, action: known ? tr`Change` : tr`Create`,
    content: [
      field(tr`Name`, name), field(tr`Read queues per broker`, queues), field(tr`Write queues per broker`, writes, { hint: tr`Fewer than the read queues while you remove queues.` }),
      field(tr`Messages`, type, { hint: tr`The type of messages that RocketMQ 5 clients can send. Without a choice, the present type stays.` }), field(tr`Permission`, perm), field(tr`Keep the queues while a broker is unavailable`, order),
    ],
    act: () => post("/api/topics", {
      topic: name.value.trim(), queues: Number(queues.value), ...(writes.value === "" ? {} : { writeQueues: Number(writes.value) }),
      type: type.value, perm: Number(perm.value), order: order.checked,
    }),
  });
  if (!done) return;
  note(tr`Topic ${name.value.trim()} has ${count(Number(queues.value))} queues on each broker.`);
  if (known) view.again(); else view.go(topicPath(name.value.trim()));
}

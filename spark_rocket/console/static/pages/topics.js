// Topics: search, sort, create.
import { get, post } from "../api.js";
import { h, put, topicPath } from "../dom.js";
import { ago, brief, count, moment, rate, size } from "../format.js";
import { button, choice, dialog, field, head, note, pager, Table, Troubles } from "../parts.js";

const KINDS = [["user", "User"], ["retry", "Retry"], ["dlq", "Dead letters"], ["system", "System"]];
const TYPES = ["", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"];

export default function topics(view) {
  view.title("Topics");
  const state = { search: view.query.get("search") ?? "", kind: view.query.get("kind") ?? "user", sort: view.query.get("sort") ?? "name", desc: view.query.get("desc") === "1", page: Number(view.query.get("page") ?? 0) || 0 };
  const change = (values) => {
    Object.assign(state, "page" in values ? values : { ...values, page: 0 });
    view.remember({ ...state, kind: state.kind === "user" ? "" : state.kind, sort: state.sort === "name" ? "" : state.sort, desc: state.desc ? 1 : "", page: state.page || "" });
    view.again();
  };
  const search = h("input", { type: "search", placeholder: "Find a topic …", "aria-label": "Find a topic", value: state.search });
  search.addEventListener("input", () => change({ search: search.value }));
  const none = h("span");
  const troubles = new Troubles();
  const pages = pager((page) => change({ page }));
  const table = new Table({
    caption: "Topics", key: (t) => t.name,
    onSort: (key, now) => change({ sort: key, desc: now?.key === key ? !now.desc : key !== "name" }),
    empty: h("p", {}, none, button("Create a topic", () => create(view), "quiet change")),
    columns: [
      { key: "name", title: "Topic", main: true, text: (t) => t.name, href: (t) => topicPath(t.name), sub: (t) => (t.type && t.type !== "UNSPECIFIED" ? t.type : "") },
      { key: "queues", title: "Queues", num: true, text: (t) => count(t.queues), sub: (t) => (t.brokers.length > 1 ? `${t.brokers.length} brokers` : "") },
      { key: "messages", title: "Messages", num: true, text: (t) => brief(t.messages), hint: (t) => count(t.messages) },
      { key: "bytes", title: "Size", num: true, text: (t) => (t.bytes === null ? "–" : `≈ ${size(t.bytes)}`), hint: () => "Estimated from the last messages" },
      { key: "rate", title: "In", num: true, text: (t) => rate(t.rate) },
      { key: "lastUpdate", title: "Last message", num: true, text: (t) => ago(t.lastUpdate), hint: (t) => moment(t.lastUpdate) },
    ],
  });
  view.show(
    head("Topics", { actions: [button("New topic", () => create(view), "primary change")] }), troubles.element,
    h("div", { class: "toolbar" }, search, choice("Kind", "kind", KINDS, state.kind, (kind) => change({ kind }))), table.element, pages.element);
  view.poll(async () => {
    const data = await get("/api/topics", { ...state, desc: state.desc ? 1 : "" }, { signal: view.gone.signal });
    if (!data.known && !data.trouble && !data.rows.length) return 300;
    troubles.show([...(data.trouble ? [["Cluster", data.trouble]] : []), ...Object.entries(data.failed)]);
    view.cluster(data);
    put(none, Object.keys(data.failed).length ? "No topics on the available brokers. " : state.search ? "No matching topics. " : state.kind === "user" ? "No topics yet. A topic appears with its first message if brokers create topics automatically. " : "No topics of this kind. ");
    table.showSort(state.sort, state.desc);
    table.update(data.rows);
    pages.show(data, "topics");
    return data.known ? data.refresh : 500;
  });
}

/** The form for a new topic, or with `known` for changing one. */
export async function create(view, known = null) {
  const input = (type, value, more = {}) => h("input", { type, value, ...more });
  const name = input("text", known?.topic ?? "", { required: true, autocomplete: "off", spellcheck: "false", pattern: "[%\\|a-zA-Z0-9_\\-]+", maxlength: 127, title: "Letters, digits, %, |, _ and -" });
  if (known) name.readOnly = true;
  const queues = input("number", known?.queues ?? 8, { min: 1, max: 1024, required: true });
  const writes = input("number", known?.writeQueues ?? "", { min: 0, max: 1024, placeholder: "the same" });
  const type = h("select", {}, TYPES.map((t) => h("option", { value: t }, t || "any")));
  type.value = known?.type && known.type !== "UNSPECIFIED" ? known.type : "";
  const perm = h("select", {}, [["6", "read and write"], ["4", "read only"], ["2", "write only"]].map(([value, text]) => h("option", { value }, text)));
  perm.value = String(known?.perm ?? 6);
  const order = h("input", { type: "checkbox", checked: known?.order ?? false });
  const done = await dialog({
    title: known ? `Change ${known.topic}` : "New topic", action: known ? "Change" : "Create",
    content: [
      field("Name", name), field("Read queues per broker", queues), field("Write queues per broker", writes, { hint: "Fewer than the read queues while you remove queues." }),
      field("Messages", type, { hint: "The type of messages that RocketMQ 5 clients can send. Without a choice, the present type stays." }), field("Permission", perm), field("Keep the queues while a broker is unavailable", order),
    ],
    act: () => post("/api/topics", {
      topic: name.value.trim(), queues: Number(queues.value), ...(writes.value === "" ? {} : { writeQueues: Number(writes.value) }),
      type: type.value, perm: Number(perm.value), order: order.checked,
    }),
  });
  if (!done) return;
  note(done.done);
  if (known) view.again(); else view.go(topicPath(name.value.trim()));
}

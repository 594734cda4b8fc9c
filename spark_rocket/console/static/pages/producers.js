// Connected producers: search, sort, the producers of a topic.
import { get } from "../api.js";
import { h, put } from "../dom.js";
import { ago, moment } from "../format.js";
import { head, names, pager, Table, Troubles } from "../parts.js";
import { tr } from "../language.js";

export default function producers(view) {
  view.title(tr`Producers`);
  const query = view.query;
  const state = { search: query.get("search") ?? "", topic: query.get("topic") ?? "", own: query.get("own") === "1", sort: query.get("sort") ?? "name", desc: query.get("desc") === "1", page: Number(query.get("page") ?? 0) || 0 };
  const change = (values) => {
    Object.assign(state, "page" in values ? values : { ...values, page: 0 });
    view.remember({ ...state, own: state.own ? 1 : "", sort: state.sort === "name" ? "" : state.sort, desc: state.desc ? 1 : "", page: state.page || "" });
    view.again();
  };
  const search = h("input", { type: "search", placeholder: tr`Find a group, client or address …`, "aria-label": tr`Find a group, client or address`, value: state.search });
  search.addEventListener("input", () => change({ search: search.value }));
  const topics = names([]);
  const topic = h("input", { type: "search", placeholder: tr`All topics`, "aria-label": tr`Topic`, list: topics.id, autocomplete: "off", spellcheck: "false", value: state.topic });
  topic.addEventListener("change", () => change({ topic: topic.value.trim() }));
  const own = h("input", { type: "checkbox", id: "own", checked: state.own, onchange: () => change({ own: own.checked }) });
  const none = h("span");
  const unlisted = h("p", { class: "trouble info", hidden: true });
  const ofTopic = h("p", { class: "muted", hidden: true });
  const troubles = new Troubles();
  const pages = pager((page) => change({ page }));
  const table = new Table({
    caption: tr`Producers`, key: (p) => `${p.name}/${p.client}`, empty: none,
    onSort: (key, now) => change({ sort: key, desc: now?.key === key ? !now.desc : key === "lastHeartbeat" }),
    columns: [
      { key: "name", title: tr`Group`, main: true, text: (p) => p.name },
      { key: "client", title: tr`Client`, text: (p) => p.client, sub: (p) => p.address },
      { key: "language", title: tr`Language`, text: (p) => p.language },
      { key: "version", title: tr`Version`, text: (p) => p.version },
      { key: "brokers", title: tr`Connected to`, sort: false, text: (p) => p.brokers.join(", ") },
      { key: "lastHeartbeat", title: tr`Last heartbeat`, num: true, text: (p) => ago(p.lastHeartbeat), hint: (p) => moment(p.lastHeartbeat) },
    ],
  });
  view.show(
    head(tr`Producers`, { sub: tr`Clients that are connected to send messages. They send a heartbeat every 30 seconds.` }), troubles.element, unlisted,
    h("div", { class: "toolbar" }, search, topic, topics, h("span", { class: "check" }, own, h("label", { for: "own" }, tr`Include system groups`))), ofTopic, table.element, pages.element);
  view.poll(async () => {
    const data = await get("/api/producers", { ...state, own: state.own ? 1 : "", desc: state.desc ? 1 : "" }, { signal: view.gone.signal });
    troubles.show(Object.entries(data.failed));
    unlisted.hidden = data.unlisted.length === 0;
    put(unlisted, tr`${data.unlisted.join(", ")} (RocketMQ 4) reports only the producers of a given group: enter its complete name.`);
    ofTopic.hidden = !state.topic;
    put(ofTopic, tr`Producers that are connected to a broker of ${state.topic}. Brokers do not report to which topics a producer sends.`);
    put(none, Object.keys(data.failed).length ? tr`No producers at the available brokers.` : state.search || state.topic ? tr`No matching producers.` : tr`No producers are connected. gRPC clients send through the proxy, without a producer group.`);
    table.showSort(state.sort, state.desc);
    table.update(data.rows);
    pages.show(data, (n) => tr`${n} producers`);
    return data.refresh;
  });
  view.try(async () => topics.replaceChildren(...(await get("/api/topic-names", {}, { signal: view.gone.signal })).names.map((name) => h("option", { value: name }))));
}

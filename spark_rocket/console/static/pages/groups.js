// Consumer groups: search, sort, create.
import { get, post } from "../api.js";
import { groupPath, h, put } from "../dom.js";
import { brief, count, rate } from "../format.js";
import { button, dialog, field, head, note, pager, Table, Troubles } from "../parts.js";
import { tr } from "../language.js";

const TONES = { online: "pill good", stream: "pill info", stopped: "pill", idle: "pill", new: "pill" };
const STATES = { online: tr`online`, stream: tr`Spark stream`, stopped: tr`Spark stream, stopped`, idle: tr`no consumers`, new: tr`nothing consumed yet` };
export const stateText = (group) => STATES[group.kind] ?? "–";
export const stateTone = (group) => (isLeft(group) ? "pill warn" : TONES[group.kind] ?? "");
/** Whether messages are pending without a consumer. A stopped stream is not reported as a problem. */
export const isLeft = (group) => group.kind === "idle" && group.lag > 0;
export const lagTone = (group) => (isLeft(group) ? "warn" : "");

export default function groups(view) {
  view.title(tr`Groups`);
  const state = { search: view.query.get("search") ?? "", own: view.query.get("own") === "1", sort: view.query.get("sort") ?? "name", desc: view.query.get("desc") === "1", page: Number(view.query.get("page") ?? 0) || 0 };
  const change = (values) => {
    Object.assign(state, "page" in values ? values : { ...values, page: 0 });
    view.remember({ ...state, own: state.own ? 1 : "", sort: state.sort === "name" ? "" : state.sort, desc: state.desc ? 1 : "", page: state.page || "" });
    view.again();
  };
  const search = h("input", { type: "search", placeholder: tr`Find a group …`, "aria-label": tr`Find a group`, value: state.search });
  search.addEventListener("input", () => change({ search: search.value }));
  const own = h("input", { type: "checkbox", id: "own", checked: state.own, onchange: () => change({ own: own.checked }) });
  const none = h("span");
  const troubles = new Troubles();
  const pages = pager((page) => change({ page }));
  const table = new Table({
    caption: tr`Consumer groups`, key: (g) => g.name,
    onSort: (key, now) => change({ sort: key, desc: now?.key === key ? !now.desc : key !== "name" }),
    empty: h("p", {}, none, " ", button(tr`Create a group`, () => create(view), "quiet change")),
    columns: [
      { key: "name", title: tr`Group`, main: true, text: (g) => g.name, href: (g) => groupPath(g.name), sub: (g) => some(g.topics) },
      { key: "kind", title: tr`State`, text: stateText, tone: stateTone },
      { key: "members", title: tr`Members`, num: true, text: (g) => count(g.members) },
      { key: "lag", title: tr`Lag`, num: true, text: (g) => brief(g.lag), hint: (g) => count(g.lag), tone: lagTone },
      { key: "rate", title: tr`Rate`, num: true, text: (g) => rate(g.rate) },
    ],
  });
  view.show(
    head(tr`Groups`, { actions: [button(tr`New group`, () => create(view), "primary change")] }), troubles.element,
    h("div", { class: "toolbar" }, search, h("span", { class: "check" }, own, h("label", { for: "own" }, tr`Include system groups`))), table.element, pages.element);
  view.poll(async () => {
    const data = await get("/api/groups", { ...state, own: state.own ? 1 : "", desc: state.desc ? 1 : "" }, { signal: view.gone.signal });
    if (!data.known && !data.trouble && !data.rows.length) return 300;
    troubles.show([...(data.trouble ? [[tr`Cluster`, data.trouble]] : []), ...Object.entries(data.failed)]);
    view.cluster(data);
    put(none, Object.keys(data.failed).length ? tr`No groups on the available brokers.` : state.search ? tr`No matching groups.` : tr`No groups yet. A group appears with its first consumer, or with a Spark stream's consumerGroup.`);
    table.showSort(state.sort, state.desc);
    table.update(data.rows);
    pages.show(data, (n) => tr`${n} groups`);
    return data.known ? data.refresh : 500;
  });
}

const some = (topics) => (topics.length > 3 ? tr`${topics.slice(0, 3).join(", ")} and ${topics.length - 3} more` : topics.join(", "));

export async function create(view, known = null) {
  const name = h("input", { required: true, autocomplete: "off", spellcheck: "false", pattern: "[%\\|a-zA-Z0-9_\\-]+", maxlength: 120, value: known?.group ?? "", title: tr`Letters, digits, %, |, _ and -` });
  if (known) name.readOnly = true;
  const retries = h("input", { type: "number", min: 0, max: 1000, value: known?.retries ?? 16, required: true });
  const ordered = h("input", { type: "checkbox", checked: known?.ordered ?? false });
  const done = await dialog({
    title: known ? tr`Change ${known.group}` : tr`New group`, action: known ? tr`Change` : tr`Create`,
    content: [
      field(tr`Name`, name), field(tr`Retries`, retries, { hint: tr`After so many failed retries, a message becomes a dead letter.` }),
      field(tr`In order`, ordered, { hint: tr`For POP consumers, such as RocketMQ 5 clients.` }),
    ],
    act: () => post("/api/groups", { group: name.value.trim(), retries: Number(retries.value), ordered: ordered.checked }),
  });
  if (!done) return;
  note(tr`Group ${name.value.trim()} exists on all brokers.`);
  if (known) view.again(); else view.go(groupPath(name.value.trim()));
}

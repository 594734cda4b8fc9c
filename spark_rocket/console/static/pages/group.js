// A group: lag over time, queues, members, subscriptions, offset reset.
import { get, post, remove, timeOf } from "../api.js";
import { Chart } from "../chart.js";
import { deadPath, h, memberPath, put, topicPath } from "../dom.js";
import { ago, brief, count, duration, moment, rate } from "../format.js";
import { button, choice, confirmName, dialog, facts, field, head, linkButton, note, section, Table, Tiles, timeHint, timeInput } from "../parts.js";
import { create, isLeft, stateText } from "./groups.js";
import { listed, tr } from "../language.js";

const STREAMS = {
  stream: () => tr`This group has no members: a Spark stream (or another reader that commits its own offsets) uses it. After a restart, the stream continues from its checkpoint, not from the group's offsets.`,
  stopped: (g) => tr`The Spark stream of this group has stopped or makes no progress: messages are pending, and it has not committed for ${duration((Date.now() - g.stillSince) / 1000)}. The last committed offsets are below. After a restart, it continues from its checkpoint.`,
};
const MODELS = { CLUSTERING: tr`clustering`, BROADCASTING: tr`broadcasting` };
const TYPES = { CONSUME_PASSIVELY: tr`push`, CONSUME_ACTIVELY: tr`pull`, CONSUME_POP: tr`pop` };

export default function group(view) {
  const name = view.argument;
  const path = `/api/groups/${encodeURIComponent(name)}`;
  view.title(name);
  let data = null;
  const tiles = new Tiles([["lag", tr`Lag`], ["delay", tr`Delay`], ["rate", tr`Rate`], ["members", tr`Members`], ["state", tr`State`]]);
  const stream = h("p", { class: "trouble info", hidden: true });
  const chart = new Chart({ title: tr`Lag`, format: brief, area: true });
  const queues = new Table({
    caption: tr`Queues`, key: (q) => `${q.topic}/${q.broker}/${q.queue}`, empty: tr`No messages consumed yet.`,
    columns: [
      { key: "queue", title: tr`Queue`, main: true, text: (q) => q.topic, href: (q) => topicPath(q.topic), sub: (q) => `${q.broker} · ${q.queue}` },
      { key: "committed", title: tr`Committed`, num: true, text: (q) => count(q.committed) },
      { key: "end", title: tr`End`, num: true, text: (q) => count(q.end) },
      { key: "lag", title: tr`Lag`, num: true, text: (q) => count(q.lag), tone: (q) => (q.lag ? "strong" : "") },
      { key: "delay", title: tr`Delay`, num: true, text: (q) => (q.delay ? duration(q.delay / 1000) : "–") },
      { key: "last", title: tr`Last consumed message`, num: true, text: (q) => ago(q.lastConsumed), hint: (q) => moment(q.lastConsumed) },
    ],
  });
  const members = new Table({
    caption: tr`Members`, key: (m) => m.id, empty: tr`No members online.`,
    columns: [
      { key: "id", title: tr`Client`, main: true, text: (m) => m.id, href: (m) => memberPath(name, m.id), sub: (m) => m.address },
      { key: "language", title: tr`Language`, text: (m) => m.language },
      { key: "version", title: tr`Version`, text: (m) => m.version },
      { key: "brokers", title: tr`Connected to`, text: (m) => m.brokers.join(", ") },
    ],
  });
  const subscriptions = new Table({
    caption: tr`Subscriptions`, key: (s) => s.topic, empty: tr`Unknown: no members online.`,
    columns: [
      { key: "topic", title: tr`Topic`, main: true, text: (s) => s.topic, href: (s) => topicPath(s.topic) },
      { key: "expression", title: tr`Filter`, text: (s) => s.expression },
      { key: "type", title: tr`Kind`, text: (s) => s.type },
    ],
  });
  const settings = h("div", { class: "card" });
  const drawn = h("p", { class: "muted", hidden: true });
  const drop = async () => {
    const done = await confirmName({
      title: tr`Delete ${name}`, warning: tr`The group and its offsets are deleted on all brokers. Consumers that return start without offsets.`,
      name, action: tr`Delete`, act: (confirm) => remove(path, { confirm }),
    });
    if (done) { note(tr`Deleted group ${name} with its offsets.`); view.go("/groups"); }
  };
  const edit = () => {
    const first = data && Object.values(data.configs)[0];
    if (first) create(view, { group: name, retries: first.retries, ordered: first.ordered });
  };
  view.show(
    head(name, { back: ["/groups", tr`Groups`], actions: [
      button(tr`Reset offsets`, () => reset(view, name, path, data), "change"), linkButton(tr`Dead letters`, deadPath(name)), button(tr`Change`, edit, "change"), button(tr`Delete`, drop, "danger change"),
    ] }),
    stream, tiles.element,
    section(tr`Lag over time`, h("div", { class: "card" }, chart.element, drawn)), section(tr`Queues`, queues.element),
    h("div", { class: "halves" }, section(tr`Members`, members.element), section(tr`Subscriptions`, subscriptions.element)), section(tr`Settings`, settings));
  let shownConfigs = "";
  let known = "1"; // first the console's cached sample, then the brokers' present state
  view.poll(async () => {
    data = await get(path, { known }, { signal: view.gone.signal });
    known = "";
    const g = data.group;
    stream.hidden = !STREAMS[g.kind];
    put(stream, STREAMS[g.kind]?.(g) ?? "");
    tiles.set("lag", brief(g.lag), { sub: g.lag >= 100000 ? count(g.lag) : "" });
    tiles.set("delay", g.delay ? duration(g.delay / 1000) : "–");
    tiles.set("rate", rate(g.rate));
    tiles.set("members", count(g.members), { sub: listed([TYPES[data.consumeType] ?? data.consumeType, MODELS[data.messageModel] ?? data.messageModel].filter(Boolean)) });
    tiles.set("state", stateText(g), { tone: isLeft(g) ? "words warn" : "words" });
    const shown = Object.keys(data.series.columns).filter((column) => column !== "total");
    const sameTopic = new Set(shown.map((column) => column.split(" · ")[0])).size === 1;
    chart.update(data.series, [["total", tr`all queues`], ...(shown.length > 1 ? shown.map((column) => [column, sameTopic ? column.split(" · ").slice(1).join(" · ") : column]) : [])]);
    const isMore = data.queues?.length > data.drawn;
    drawn.hidden = !isMore;
    put(drawn, isMore ? tr`The chart shows the ${data.drawn} queues with the highest lag.` : "");
    if (data.queues) queues.update(data.queues);
    if (data.members) members.update(data.members);
    if (data.subscriptions) subscriptions.update(data.subscriptions);
    const now = JSON.stringify(data.configs);
    if (now !== shownConfigs) {
      shownConfigs = now;
      settings.replaceChildren(...Object.entries(data.configs).map(([broker, c]) => [h("h3", {}, broker), facts([
        [tr`Can consume`, c.consumeEnable ? tr`yes` : tr`no`], [tr`Retries`, count(c.retries)], [tr`Retry queues`, count(c.retryQueues)], [tr`In order`, c.ordered ? tr`yes` : tr`no`], [tr`Broadcasting`, c.broadcast ? tr`allowed` : tr`no`],
      ])]).flat());
    }
    return data.refresh;
  });
}

/** Preview a reset, then apply it. */
async function reset(view, name, path, data) {
  const topics = [...new Set([...(data?.queues ?? []).map((q) => q.topic), ...(data?.subscriptions ?? []).map((s) => s.topic)])].filter((t) => !t.startsWith("%RETRY%"));
  const list = h("datalist", { id: "reset-topics" }, topics.map((t) => h("option", { value: t })));
  const topic = h("input", { required: true, value: topics[0] ?? "", list: "reset-topics", autocomplete: "off" });
  const at = timeInput();
  const when = field(tr`Time`, at, { hint: tr`${timeHint()} Starts with the first message stored at or after this time.` });
  when.hidden = true;
  let to = "earliest";
  let chosen = null;
  const where = choice(tr`Reset to`, "to", [["earliest", tr`First message`], ["latest", tr`End`], ["time", tr`Time`]], to, (value) => { to = value; when.hidden = to !== "time"; at.required = !when.hidden; });
  const plan = await dialog({
    title: tr`Reset offsets of ${name}`, action: tr`Preview`, content: [field(tr`Topic`, topic), list, where, when],
    act: async () => {
      chosen = { topic: topic.value.trim(), to, ...(to === "time" ? { timestamp: await timeOf(at.value) } : {}) };
      return post(`${path}/plan`, chosen);
    },
  });
  if (!plan) return;
  const table = new Table({
    caption: tr`New offsets`, key: (q) => `${q.broker}/${q.queue}`, empty: tr`The topic has no queues.`,
    columns: [
      { key: "queue", title: tr`Queue`, main: true, text: (q) => `${q.broker} · ${q.queue}` },
      { key: "now", title: tr`Now`, num: true, text: (q) => count(q.committed) },
      { key: "then", title: tr`New`, num: true, text: (q) => count(q.target) },
      { key: "moved", title: tr`Difference`, num: true, text: (q) => (q.moved > 0 ? `+${count(q.moved)}` : count(q.moved)) },
    ],
  });
  table.update(plan.rows);
  const done = await dialog({
    title: tr`Reset offsets of ${name}`, action: tr`Reset`, danger: true,
    content: [
      h("p", {}, tr`${count(plan.again)} messages of ${chosen.topic} will be repeated, ${count(plan.skipped)} will be skipped.`),
      plan.members ? h("p", { class: "trouble warn" }, tr`${plan.members} members are online. Brokers notify them of the reset. Clients other than Java and spark_rocket may ignore it and overwrite the new offsets.`) : null,
      table.element,
    ],
    act: () => post(`${path}/reset`, { ...chosen, online: plan.members > 0 }),
  });
  if (done) { note(tr`Reset group ${name} in ${count(plan.rows.length)} queues of ${chosen.topic}.`); view.again(); }
}

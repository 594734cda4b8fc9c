// One group: how far it is behind, drawn over time; its queues, members, subscriptions; going elsewhere.
import { get, post, remove } from "../api.js";
import { Chart } from "../chart.js";
import { deadPath, h, put, topicPath } from "../dom.js";
import { ago, brief, count, duration, moment, rate, zone } from "../format.js";
import { button, choice, confirmName, dialog, facts, field, head, linkButton, note, section, Table, Tiles } from "../parts.js";
import { create, isLeft, stateText } from "./groups.js";

const STREAMS = {
  stream: () => "This group has no members: a Spark stream (or another reader that commits by itself) reads it. Its checkpoint, not the group, says where it goes on after a restart.",
  stopped: (g) => `The Spark stream of this group has stopped, or makes no progress: messages wait, and it has committed nothing for ${duration((Date.now() - g.stillSince) / 1000)}. Below is how far it had read. Started again, it goes on where its checkpoint says.`,
};
const TYPES = { CONSUME_PASSIVELY: "push", CONSUME_ACTIVELY: "pull", CONSUME_POP: "pop" };

export default function group(view) {
  const name = view.argument;
  const path = `/api/groups/${encodeURIComponent(name)}`;
  view.title(name);
  let data = null;
  const tiles = new Tiles([["lag", "Lag"], ["delay", "Behind by"], ["rate", "Reads"], ["members", "Members"], ["state", "State"]]);
  const stream = h("p", { class: "trouble info", hidden: true });
  const chart = new Chart({ title: "Lag", format: brief, area: true });
  const queues = new Table({
    caption: "Queues", key: (q) => `${q.topic}/${q.broker}/${q.queue}`, empty: "It has read nothing yet.",
    columns: [
      { key: "queue", title: "Queue", main: true, text: (q) => q.topic, href: (q) => topicPath(q.topic), sub: (q) => `${q.broker} · ${q.queue}` },
      { key: "committed", title: "Read up to", num: true, text: (q) => count(q.committed) },
      { key: "end", title: "End", num: true, text: (q) => count(q.end) },
      { key: "lag", title: "Lag", num: true, text: (q) => count(q.lag), tone: (q) => (q.lag ? "strong" : "") },
      { key: "delay", title: "Behind by", num: true, text: (q) => (q.delay ? duration(q.delay / 1000) : "–") },
      { key: "last", title: "Last read message", num: true, text: (q) => ago(q.lastConsumed), hint: (q) => moment(q.lastConsumed) },
    ],
  });
  const members = new Table({
    caption: "Members", key: (m) => m.id, empty: "Nobody is online.",
    columns: [
      { key: "id", title: "Client", main: true, text: (m) => m.id, sub: (m) => m.address },
      { key: "language", title: "Language", text: (m) => m.language },
      { key: "version", title: "Version", text: (m) => m.version },
      { key: "brokers", title: "Connected to", text: (m) => m.brokers.join(", ") },
    ],
  });
  const subscriptions = new Table({
    caption: "Subscriptions", key: (s) => s.topic, empty: "Nobody is online to say.",
    columns: [
      { key: "topic", title: "Topic", main: true, text: (s) => s.topic, href: (s) => topicPath(s.topic) },
      { key: "expression", title: "Filter", text: (s) => s.expression },
      { key: "type", title: "Kind", text: (s) => s.type },
    ],
  });
  const settings = h("div", { class: "card" });
  const drawn = h("p", { class: "muted", hidden: true });
  const drop = async () => {
    const done = await confirmName({
      title: `Delete ${name}`, says: "The group and how far it has read go on all brokers. Consumers that come back begin anew.",
      name, action: "Delete", act: (confirm) => remove(path, { confirm }),
    });
    if (done) { note(done.done); view.go("/groups"); }
  };
  const edit = () => {
    const first = data && Object.values(data.configs)[0];
    if (first) create(view, { group: name, retries: first.retries, ordered: first.ordered });
  };
  view.show(
    head(name, { back: ["/groups", "Groups"], actions: [
      button("Reset offsets", () => reset(view, name, path, data), "change"), linkButton("Dead letters", deadPath(name)), button("Change", edit, "change"), button("Delete", drop, "danger change"),
    ] }),
    stream, tiles.element,
    section("Lag over time", h("div", { class: "card" }, chart.element, drawn)), section("Queues", queues.element),
    h("div", { class: "halves" }, section("Members", members.element), section("Subscriptions", subscriptions.element)), section("Settings", settings));
  let said = "";
  let known = "1"; // first what the console knows already, and at once; then what the brokers say
  view.poll(async () => {
    data = await get(path, { known }, { signal: view.gone.signal });
    known = "";
    const g = data.group;
    stream.hidden = !STREAMS[g.kind];
    put(stream, STREAMS[g.kind]?.(g) ?? "");
    tiles.set("lag", brief(g.lag), { sub: g.lag >= 100000 ? count(g.lag) : "" });
    tiles.set("delay", g.delay ? duration(g.delay / 1000) : "–");
    tiles.set("rate", rate(g.rate));
    tiles.set("members", count(g.members), { sub: [TYPES[data.consumeType] ?? data.consumeType, data.messageModel].filter(Boolean).join(", ").toLowerCase() });
    tiles.set("state", stateText(g), { tone: isLeft(g) ? "words warn" : "words" });
    const shown = Object.keys(data.series.columns).filter((column) => column !== "total");
    const sameTopic = new Set(shown.map((column) => column.split(" · ")[0])).size === 1;
    chart.update(data.series, [["total", "all queues"], ...(shown.length > 1 ? shown.map((column) => [column, sameTopic ? column.split(" · ").slice(1).join(" · ") : column]) : [])]);
    const isMore = data.queues?.length > data.drawn;
    drawn.hidden = !isMore;
    put(drawn, isMore ? `Drawn are the ${data.drawn} queues that are furthest behind.` : "");
    if (data.queues) queues.update(data.queues);
    if (data.members) members.update(data.members);
    if (data.subscriptions) subscriptions.update(data.subscriptions);
    const now = JSON.stringify(data.configs);
    if (now !== said) {
      said = now;
      settings.replaceChildren(...Object.entries(data.configs).map(([broker, c]) => [h("h3", {}, broker), facts([
        ["May consume", c.consumeEnable ? "yes" : "no"], ["Retries", count(c.retries)], ["Retry queues", count(c.retryQueues)], ["In order", c.ordered ? "yes" : "no"], ["Broadcasting", c.broadcast ? "allowed" : "no"],
      ])]).flat());
    }
    return data.refresh;
  });
}

/** First where it would go, then going there. */
async function reset(view, name, path, data) {
  const topics = [...new Set([...(data?.queues ?? []).map((q) => q.topic), ...(data?.subscriptions ?? []).map((s) => s.topic)])].filter((t) => !t.startsWith("%RETRY%"));
  const list = h("datalist", { id: "reset-topics" }, topics.map((t) => h("option", { value: t })));
  const topic = h("input", { required: true, value: topics[0] ?? "", list: "reset-topics", autocomplete: "off" });
  const at = h("input", { type: "datetime-local", step: 1 });
  const when = field("Time", at, { hint: `${zone()}. The first messages stored then or later.` });
  when.hidden = true;
  let to = "earliest";
  const body = () => ({ topic: topic.value.trim(), to, ...(to === "time" ? { timestamp: new Date(at.value).getTime() || 0 } : {}) });
  const where = choice("Where to", "to", [["earliest", "The first message"], ["latest", "The end"], ["time", "A time"]], to, (value) => { to = value; when.hidden = to !== "time"; });
  const plan = await dialog({
    title: `Reset offsets of ${name}`, action: "Preview", content: [field("Topic", topic), list, where, when],
    act: () => post(`${path}/plan`, body()),
  });
  if (!plan) return;
  const table = new Table({
    caption: "Where it would go", key: (q) => `${q.broker}/${q.queue}`, empty: "The topic has no queue.",
    columns: [
      { key: "queue", title: "Queue", main: true, text: (q) => `${q.broker} · ${q.queue}` },
      { key: "now", title: "Now", num: true, text: (q) => count(q.committed) },
      { key: "then", title: "Then", num: true, text: (q) => count(q.target) },
      { key: "moved", title: "Moved by", num: true, text: (q) => (q.moved > 0 ? `+${count(q.moved)}` : count(q.moved)) },
    ],
  });
  table.update(plan.rows);
  const chosen = body();
  const done = await dialog({
    title: `Reset offsets of ${name}`, action: "Reset", danger: true,
    content: [
      h("p", {}, `${count(plan.again)} messages of ${chosen.topic} are read again, ${count(plan.skipped)} are skipped.`),
      plan.members ? h("p", { class: "trouble warn" }, `${plan.members} members are online. They are told to go there; members that are no Java or spark_rocket clients may not listen, and write over it.`) : null,
      table.element,
    ],
    act: () => post(`${path}/reset`, { ...chosen, online: plan.members > 0 }),
  });
  if (done) { note(done.done); view.again(); }
}

// A topic: queues on each broker, consumer groups, route, settings.
import { get, remove } from "../api.js";
import { Chart } from "../chart.js";
import { groupPath, h, messagePath } from "../dom.js";
import { ago, brief, count, moment, rate, size } from "../format.js";
import { button, confirmName, facts, head, linkButton, note, section, Table, Tiles, Troubles } from "../parts.js";
import { stateText, stateTone } from "./groups.js";
import { create } from "./topics.js";
import { tr } from "../language.js";

export default function topic(view) {
  const name = view.argument;
  const q = new URLSearchParams({ topic: name });
  view.title(name);
  let data = null;
  const tiles = new Tiles([["messages", tr`Messages`], ["bytes", tr`Size`], ["rate", tr`In`], ["queues", tr`Queues`], ["last", tr`Last message`]]);
  const troubles = new Troubles();
  const chart = new Chart({ title: tr`Messages in and out`, format: rate, area: true });
  const queues = new Table({
    caption: tr`Queues`, key: (o) => `${o.broker}/${o.queue}`, empty: tr`No broker reports its queues.`,
    columns: [
      { key: "queue", title: tr`Queue`, main: true, text: (o) => `${o.broker} · ${o.queue}` },
      { key: "min", title: tr`First`, num: true, text: (o) => count(o.min) },
      { key: "max", title: tr`End`, num: true, text: (o) => count(o.max) },
      { key: "messages", title: tr`Messages`, num: true, text: (o) => count(o.max - o.min) },
      { key: "last", title: tr`Last message`, num: true, text: (o) => ago(o.lastUpdate), hint: (o) => moment(o.lastUpdate), href: (o) => (o.max > o.min ? messagePath({ ...o, offset: o.max - 1 }) : null) },
    ],
  });
  const readers = new Table({
    caption: tr`Consumer groups`, key: (g) => g.name, empty: tr`No consumer groups yet. A group appears here with its first commit.`,
    columns: [
      { key: "name", title: tr`Group`, main: true, text: (g) => g.name, href: (g) => groupPath(g.name) },
      { key: "kind", title: tr`State`, text: (g) => stateText(g), tone: (g) => stateTone(g) },
      { key: "lag", title: tr`Lag here`, num: true, text: (g) => count(g.lag) },
      { key: "members", title: tr`Members`, num: true, text: (g) => count(g.members) },
    ],
  });
  const settings = h("div", { class: "card" });
  const route = h("div", { class: "card" });
  const edit = () => {
    const first = data && Object.values(data.configs)[0];
    if (first) create(view, { topic: name, queues: first.readQueues, writeQueues: first.writeQueues, perm: first.perm, order: first.order, type: data.topic.type });
  };
  const drop = async () => {
    const done = await confirmName({
      title: tr`Delete ${name}`, warning: tr`The topic and all of its ${count(data?.topic.messages)} messages are permanently deleted on all brokers.`,
      name, action: tr`Delete`, act: (confirm) => remove(`/api/topics/${encodeURIComponent(name)}`, { confirm }),
    });
    if (done) { note(tr`Deleted topic ${name} with its messages.`); view.go("/topics"); }
  };
  view.show(
    head(name, { back: ["/topics", tr`Topics`], actions: [
      linkButton(tr`Messages`, `/messages?${q}`), linkButton(tr`Producers`, `/producers?${q}`), linkButton(tr`Send`, `/send?${q}`, "change"), button(tr`Change`, edit, "change"), button(tr`Delete`, drop, "danger change"),
    ] }),
    troubles.element, tiles.element,
    section(tr`Messages over time`, h("div", { class: "card" }, chart.element)),
    section(tr`Queues`, queues.element), section(tr`Consumer groups`, readers.element),
    h("div", { class: "halves" }, section(tr`Settings`, settings), section(tr`Route`, route)));
  let shownSettings = "";
  let known = "1"; // first the console's cached sample, then the brokers' present state
  view.poll(async () => {
    data = await get(`/api/topics/${encodeURIComponent(name)}`, { known }, { signal: view.gone.signal });
    known = "";
    const t = data.topic;
    troubles.show([...data.problems.map((problem) => ["", problem]), ...Object.entries(data.failed)]);
    tiles.set("messages", brief(t.messages), { sub: t.messages >= 100000 ? count(t.messages) : "" });
    tiles.set("bytes", t.bytes === null ? "–" : `≈ ${size(t.bytes)}`, { sub: tr`estimated from the last messages` });
    tiles.set("rate", rate(t.rate));
    tiles.set("queues", count(t.queues), { sub: t.brokers.length > 1 ? tr`on ${t.brokers.length} brokers` : "" });
    tiles.set("last", ago(t.lastUpdate), { sub: t.lastUpdate ? moment(t.lastUpdate) : "" });
    chart.update(data.series, [["in", tr`in`], ["out", tr`out, all groups`]]);
    if (data.offsets) queues.update(data.offsets);
    if (data.groups) readers.update(data.groups);
    const now = JSON.stringify([data.configs, data.route]);
    if (now !== shownSettings) {
      shownSettings = now;
      settings.replaceChildren(...Object.entries(data.configs).map(([broker, c]) => [h("h3", {}, broker), facts([
        [tr`Read queues`, count(c.readQueues)], [tr`Write queues`, count(c.writeQueues)], [tr`Permission`, permission(c.perm)], [tr`Ordered`, c.order ? tr`yes` : tr`no`], ...Object.entries(c.attributes),
      ])]).flat());
      if (data.route) route.replaceChildren(...data.route.map((r) => [h("h3", {}, r.broker), facts([[tr`Cluster`, r.cluster], ...Object.entries(r.addresses).map(([id, a]) => [id === "0" ? tr`Master` : tr`Slave ${id}`, a])])]).flat());
      if (data.route?.length === 0) route.replaceChildren(h("p", { class: "muted" }, tr`The name servers have no route to this topic.`));
    }
    return data.refresh;
  });
}

const permission = (perm) => [tr`none`, tr`write only`, tr`read only`, tr`read and write`][(perm >> 1) & 3];

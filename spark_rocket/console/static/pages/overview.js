// Overview of the cluster.
import { get, session } from "../api.js";
import { Chart } from "../chart.js";
import { brokerPath, groupPath, h, put } from "../dom.js";
import { brief, count, duration, millis, NONE, percent, rate, size } from "../format.js";
import { head, section, Table, Tiles, Troubles } from "../parts.js";
import { isLeft, lagTone, stateText, stateTone } from "./groups.js";
import { tr, trNodes } from "../language.js";

const STATES = { BROKER_GONE: tr`gone`, NO_PERMISSION: tr`refused` };
const ROLES = { master: tr`master`, slave: tr`slave` };

export default function overview(view) {
  view.title(tr`Overview`);
  const troubles = new Troubles();
  const tiles = new Tiles([
    ["in", tr`Messages in`], ["out", tr`Messages out`], ["topics", tr`Topics`, "/topics"], ["groups", tr`Groups`, "/groups"],
    ["lag", tr`Lag of all groups`, "/groups?sort=lag&desc=1"], ["dead", tr`Dead letters`, "/dead-letters"],
  ]);
  const chart = new Chart({ title: tr`Messages in and out`, format: rate, area: true });
  const brokers = new Table({
    caption: tr`Brokers`,
    key: (b) => `${b.name}/${b.id}`,
    empty: trNodes`No broker is registered. Start one with ${h("code", {}, `rocket broker -n ${session.nameServer}`)}.`,
    columns: [
      { key: "name", title: tr`Broker`, main: true, text: (b) => b.name, href: (b) => brokerPath(b.address), sub: (b) => b.address },
      { key: "role", title: tr`Role`, text: (b) => ROLES[b.role] ?? b.role, sub: (b) => b.cluster },
      { key: "state", title: tr`State`, text: (b) => (b.trouble ? STATES[b.trouble.code] ?? tr`no response` : tr`up`), tone: (b) => (b.trouble ? "pill bad" : "pill good"), sub: (b) => (b.trouble ? tr`for ${duration((Date.now() - b.awaySince) / 1000)}` : b.started ? tr`for ${duration((Date.now() - b.started) / 1000)}` : "") },
      { key: "in", title: tr`In`, num: true, text: (b) => rate(b.in) },
      { key: "out", title: tr`Out`, num: true, text: (b) => rate(b.out) },
      { key: "log", title: tr`Log`, num: true, text: (b) => size(b.logBytes) },
      { key: "disk", title: tr`Disk`, num: true, node: () => h("span", { class: "disk" }, h("meter", { min: 0, max: 1, low: 0.75, high: 0.9, optimum: 0 }), h("span")), refresh: (b, cell) => {
        const [meter, text] = cell.firstChild.children;
        meter.value = b.diskUsed ?? 0;
        meter.setAttribute("aria-label", tr`Disk of ${b.name}`);
        put(text, percent(b.diskUsed));
      } },
      { key: "version", title: tr`Version`, text: (b) => b.version ?? "–" },
    ],
  });
  const servers = new Table({
    caption: tr`Name servers`,
    key: (n) => n.address,
    empty: tr`An address server provides their addresses.`,
    columns: [
      { key: "address", title: tr`Name server`, main: true, text: (n) => n.address },
      { key: "state", title: tr`State`, text: (n) => (n.trouble ? tr`no response` : tr`up`), tone: (n) => (n.trouble ? "pill bad" : "pill good"), hint: (n) => n.trouble?.text },
      { key: "ms", title: tr`Response time`, num: true, text: (n) => millis(n.millis) },
    ],
  });
  const columns = [
    { key: "name", title: tr`Group`, main: true, text: (g) => g.name, href: (g) => groupPath(g.name), sub: (g) => g.topics.join(", ") },
    { key: "kind", title: tr`State`, text: (g) => stateText(g), tone: (g) => stateTone(g) },
    { key: "lag", title: tr`Lag`, num: true, text: (g) => count(g.lag), tone: lagTone },
    { key: "rate", title: tr`Rate`, num: true, text: (g) => rate(g.rate) },
  ];
  const behind = new Table({ caption: tr`Groups with the highest lag`, key: (g) => g.name, columns, empty: tr`No group has a lag.` });
  const streams = new Table({ caption: tr`Spark streams`, key: (g) => g.name, columns, empty: trNodes`No stream commits its progress. Set ${h("code", {}, '.option("consumerGroup", "name")')} on your stream to see it here.` });

  view.show(
    head(tr`Overview`, { sub: session.nameServer }), troubles.element, tiles.element,
    section(tr`Messages over time`, h("div", { class: "card" }, chart.element)),
    section(tr`Brokers`, brokers.element),
    h("div", { class: "halves" }, section(tr`Groups with the highest lag`, behind.element), section(tr`Spark streams`, streams.element)),
    section(tr`Name servers`, servers.element),
  );

  view.poll(async () => {
    const data = await get("/api/overview", {}, { signal: view.gone.signal });
    if (!data.known && !data.trouble) return 300;
    view.cluster(data);
    troubles.show([
      ...(data.trouble ? [[tr`Cluster`, data.trouble]] : []),
      ...data.nameServers.filter((n) => n.trouble && !data.trouble).map((n) => [tr`Name server ${n.address}`, n.trouble]),
      ...data.brokers.filter((b) => b.trouble).map((b) => [`${b.name} (${ROLES[b.role] ?? b.role} ${b.address})`, b.trouble]),
      ...Object.entries(data.failed).filter(([name]) => !data.brokers.some((b) => b.name === name && b.trouble)),
    ]);
    const sum = (name) => data.brokers.reduce((all, b) => all + (b[name] ?? 0), 0);
    const unavailable = data.brokers.length > 0 && data.brokers.every((b) => b.trouble);
    const known = (value, text) => (unavailable && !value ? NONE : text);
    tiles.set("in", known(0, rate(sum("in"))));
    tiles.set("out", known(0, rate(sum("out"))));
    tiles.set("topics", known(data.topics, count(data.topics)));
    tiles.set("groups", known(data.groups, count(data.groups)), unavailable && !data.groups ? {} : { sub: tr`${count(data.online)} active` });
    const left = data.behind.some(isLeft);
    tiles.set("lag", known(data.lag, brief(data.lag)), { tone: left ? "warn" : "", sub: left ? tr`partly without consumers` : "" });
    tiles.set("dead", known(data.deadLetters, brief(data.deadLetters)), { tone: data.deadLetters ? "warn" : "" });
    chart.update(data.rates, [["in", tr`in`], ["out", tr`out`]]);
    brokers.update(data.brokers);
    servers.update(data.nameServers);
    behind.update(data.behind);
    streams.update(data.streams);
    return data.refresh;
  });
}

// Overview of the cluster.
import { get, session } from "../api.js";
import { Chart } from "../chart.js";
import { brokerPath, groupPath, h, put } from "../dom.js";
import { brief, count, duration, NONE, percent, rate, size } from "../format.js";
import { head, section, Table, Tiles, Troubles } from "../parts.js";
import { isLeft, lagTone, stateText, stateTone } from "./groups.js";

const STATES = { BROKER_GONE: "gone", NO_PERMISSION: "refused" };

export default function overview(view) {
  view.title("Overview");
  const troubles = new Troubles();
  const tiles = new Tiles([
    ["in", "Messages in"], ["out", "Messages out"], ["topics", "Topics", "/topics"], ["groups", "Groups", "/groups"],
    ["lag", "Lag of all groups", "/groups?sort=lag&desc=1"], ["dead", "Dead letters", "/dead-letters"],
  ]);
  const chart = new Chart({ title: "Messages in and out", format: rate, area: true });
  const brokers = new Table({
    caption: "Brokers",
    key: (b) => `${b.name}/${b.id}`,
    empty: ["No broker is registered. Start one with ", h("code", {}, `rocket broker -n ${session.nameServer}`), "."],
    columns: [
      { key: "name", title: "Broker", main: true, text: (b) => b.name, href: (b) => brokerPath(b.address), sub: (b) => b.address },
      { key: "role", title: "Role", text: (b) => b.role, sub: (b) => b.cluster },
      { key: "state", title: "State", text: (b) => (b.trouble ? STATES[b.trouble.code] ?? "no response" : "up"), tone: (b) => (b.trouble ? "pill bad" : "pill good"), sub: (b) => (b.trouble ? `for ${duration((Date.now() - b.awaySince) / 1000)}` : b.started ? `for ${duration((Date.now() - b.started) / 1000)}` : "") },
      { key: "in", title: "In", num: true, text: (b) => rate(b.in) },
      { key: "out", title: "Out", num: true, text: (b) => rate(b.out) },
      { key: "log", title: "Log", num: true, text: (b) => size(b.logBytes) },
      { key: "disk", title: "Disk", num: true, node: () => h("span", { class: "disk" }, h("meter", { min: 0, max: 1, low: 0.75, high: 0.9, optimum: 0 }), h("span")), refresh: (b, cell) => {
        const [meter, text] = cell.firstChild.children;
        meter.value = b.diskUsed ?? 0;
        meter.setAttribute("aria-label", `Disk of ${b.name}`);
        put(text, percent(b.diskUsed));
      } },
      { key: "version", title: "Version", text: (b) => b.version ?? "–" },
    ],
  });
  const servers = new Table({
    caption: "Name servers",
    key: (n) => n.address,
    empty: "An address server provides their addresses.",
    columns: [
      { key: "address", title: "Name server", main: true, text: (n) => n.address },
      { key: "state", title: "State", text: (n) => (n.trouble ? "no response" : "up"), tone: (n) => (n.trouble ? "pill bad" : "pill good"), hint: (n) => n.trouble?.text },
      { key: "ms", title: "Response time", num: true, text: (n) => (n.millis === null ? "–" : `${n.millis} ms`) },
    ],
  });
  const columns = [
    { key: "name", title: "Group", main: true, text: (g) => g.name, href: (g) => groupPath(g.name), sub: (g) => g.topics.join(", ") },
    { key: "kind", title: "State", text: (g) => stateText(g), tone: (g) => stateTone(g) },
    { key: "lag", title: "Lag", num: true, text: (g) => count(g.lag), tone: lagTone },
    { key: "rate", title: "Rate", num: true, text: (g) => rate(g.rate) },
  ];
  const behind = new Table({ caption: "Groups with the highest lag", key: (g) => g.name, columns, empty: "No group has a lag." });
  const streams = new Table({ caption: "Spark streams", key: (g) => g.name, columns, empty: ["No stream commits its progress. Set ", h("code", {}, '.option("consumerGroup", "name")'), " on your stream to see it here."] });

  view.show(
    head("Overview", { sub: session.nameServer }), troubles.element, tiles.element,
    section("Messages over time", h("div", { class: "card" }, chart.element)),
    section("Brokers", brokers.element),
    h("div", { class: "halves" }, section("Groups with the highest lag", behind.element), section("Spark streams", streams.element)),
    section("Name servers", servers.element),
  );

  view.poll(async () => {
    const data = await get("/api/overview", {}, { signal: view.gone.signal });
    if (!data.known && !data.trouble) return 300;
    view.cluster(data);
    troubles.show([
      ...(data.trouble ? [["Cluster", data.trouble]] : []),
      ...data.nameServers.filter((n) => n.trouble && !data.trouble).map((n) => [`Name server ${n.address}`, n.trouble]),
      ...data.brokers.filter((b) => b.trouble).map((b) => [`${b.name} (${b.role} ${b.address})`, b.trouble]),
      ...Object.entries(data.failed).filter(([name]) => !data.brokers.some((b) => b.name === name && b.trouble)),
    ]);
    const sum = (name) => data.brokers.reduce((all, b) => all + (b[name] ?? 0), 0);
    const unavailable = data.brokers.length > 0 && data.brokers.every((b) => b.trouble);
    const known = (value, text) => (unavailable && !value ? NONE : text);
    tiles.set("in", known(0, rate(sum("in"))));
    tiles.set("out", known(0, rate(sum("out"))));
    tiles.set("topics", known(data.topics, count(data.topics)));
    tiles.set("groups", known(data.groups, count(data.groups)), unavailable && !data.groups ? {} : { sub: `${count(data.online)} active` });
    const left = data.behind.some(isLeft);
    tiles.set("lag", known(data.lag, brief(data.lag)), { tone: left ? "warn" : "", sub: left ? "partly without consumers" : "" });
    tiles.set("dead", known(data.deadLetters, brief(data.deadLetters)), { tone: data.deadLetters ? "warn" : "" });
    chart.update(data.rates, [["in", "in"], ["out", "out"]]);
    brokers.update(data.brokers);
    servers.update(data.nameServers);
    behind.update(data.behind);
    streams.update(data.streams);
    return data.refresh;
  });
}

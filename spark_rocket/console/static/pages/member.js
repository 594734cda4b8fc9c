// A member of a group: the running information that the client reports.
import { get } from "../api.js";
import { groupPath, h, put, topicPath } from "../dom.js";
import { ago, count, duration, millis, moment, rate } from "../format.js";
import { button, facts, head, section, Table, Tiles, Troubles } from "../parts.js";
import { tr } from "../language.js";

const KINDS = { CONSUME_PASSIVELY: tr`push`, CONSUME_ACTIVELY: tr`pull`, CONSUME_POP: tr`pop` };
const when = { title: (time) => moment(time), text: (time) => ago(time) };

export default function member(view) {
  const group = view.argument;
  const client = view.query.get("client") ?? "";
  const path = `/api/groups/${encodeURIComponent(group)}/member`;
  view.title(client);
  const troubles = new Troubles();
  const tiles = new Tiles([["kind", tr`Kind`], ["queues", tr`Queues`], ["cached", tr`Cached messages`], ["rate", tr`Consumed`], ["failed", tr`Failed`], ["up", tr`Up for`]]);
  const queue = { key: "queue", title: tr`Queue`, main: true, text: (q) => q.topic, href: (q) => topicPath(q.topic), sub: (q) => `${q.broker} · ${q.queue}` };
  const dropped = { key: "dropped", title: tr`State`, text: (q) => (q.dropped ? tr`released` : q.locked ? tr`locked` : tr`assigned`), tone: (q) => (q.dropped ? "pill warn" : "pill good") };
  const queues = new Table({
    caption: tr`Queues`, key: (q) => `${q.topic}/${q.broker}/${q.queue}`, empty: tr`The client reports no queues.`,
    columns: [
      queue,
      { key: "committed", title: tr`Committed`, num: true, text: (q) => count(q.committed) },
      { key: "cached", title: tr`Cached`, num: true, text: (q) => count(q.cached), sub: (q) => (q.cachedMiB ? `${count(q.cachedMiB)} MiB` : "") },
      { key: "range", title: tr`Cached offsets`, num: true, text: (q) => (q.cached ? `${count(q.first)} – ${count(q.last)}` : "–") },
      dropped,
      { key: "pull", title: tr`Last pull`, num: true, text: (q) => when.text(q.lastPull), hint: (q) => when.title(q.lastPull) },
      { key: "consume", title: tr`Last consumption`, num: true, text: (q) => when.text(q.lastConsume), hint: (q) => when.title(q.lastConsume) },
    ],
  });
  const popQueues = new Table({
    caption: tr`Queues in POP mode`, key: (q) => `${q.topic}/${q.broker}/${q.queue}`,
    columns: [
      queue, { key: "unacknowledged", title: tr`Not acknowledged`, num: true, text: (q) => count(q.unacknowledged) }, dropped,
      { key: "pop", title: tr`Last pop`, num: true, text: (q) => when.text(q.lastPop), hint: (q) => when.title(q.lastPop) },
    ],
  });
  const rates = new Table({
    caption: tr`Rates`, key: (r) => r.topic, empty: tr`The client reports no rates.`,
    columns: [
      { key: "topic", title: tr`Topic`, main: true, text: (r) => r.topic, href: (r) => topicPath(r.topic) },
      { key: "pull", title: tr`Pulled`, num: true, text: (r) => rate(r.pullRate), sub: (r) => millis(r.pullTime) },
      { key: "consume", title: tr`Consumed`, num: true, text: (r) => rate(r.consumeRate), sub: (r) => millis(r.consumeTime) },
      { key: "failed", title: tr`Failed`, num: true, text: (r) => rate(r.failedRate), sub: (r) => (r.failed ? tr`${count(r.failed)} in 1 h` : ""), tone: (r) => (r.failedRate ? "warn" : "") },
    ],
  });
  const subscriptions = new Table({
    caption: tr`Subscriptions`, key: (s) => s.topic, empty: tr`The client reports no subscriptions.`,
    columns: [
      { key: "topic", title: tr`Topic`, main: true, text: (s) => s.topic, href: (s) => topicPath(s.topic) },
      { key: "expression", title: tr`Filter`, text: (s) => s.expression },
      { key: "type", title: tr`Kind`, text: (s) => s.type },
    ],
  });
  const cut = h("p", { class: "muted", hidden: true });
  const properties = h("div");
  const pops = section(tr`POP queues`, popQueues.element);
  const stacks = h("div");
  const showStacks = button(tr`Show thread stacks`, () => view.try(async () => {
    showStacks.disabled = true;
    try {
      const { info, trouble } = await get(path, { client, stacks: 1 }, { signal: view.gone.signal });
      if (trouble) troubles.show([["", trouble]]);
      else {
        stacks.replaceChildren(
          h("pre", { tabindex: "0", "aria-label": tr`Thread stacks` }, info.stacks || tr`The client reports no thread stacks.`),
          info.stacksCut ? h("p", { class: "muted" }, tr`Only the beginning is shown.`) : "");
        put(showStacks, tr`Refresh thread stacks`);
      }
    } finally { showStacks.disabled = false; }
  }));
  const details = h("div", {},
    tiles.element, section(tr`Queues`, queues.element, cut), pops, section(tr`Rates`, rates.element),
    h("div", { class: "halves" }, section(tr`Subscriptions`, subscriptions.element), section(tr`Properties`, h("div", { class: "card" }, properties))),
    section(tr`Threads`, h("div", { class: "card" }, showStacks, stacks)));
  details.hidden = true;
  view.show(head(client, { back: [groupPath(group), group], sub: tr`Running information that the client reports.` }), troubles.element, details);
  let shown = "";
  view.poll(async () => {
    const { info, trouble, refresh } = await get(path, { client }, { signal: view.gone.signal });
    troubles.show(trouble ? [["", trouble]] : []);
    if (!info) return Math.max(refresh, 10000);
    details.hidden = false;
    const sum = (list, name) => list.reduce((all, one) => all + one[name], 0);
    const { properties: p } = info;
    const type = p.PROP_CONSUME_TYPE;
    const started = Number(p.PROP_CONSUMER_START_TIMESTAMP) || 0;
    tiles.set("kind", KINDS[type] ?? type?.toLowerCase() ?? "–", { tone: "words", sub: p.PROP_CONSUMEORDERLY === "true" ? tr`in order` : "" });
    tiles.set("queues", count(info.queueCount));
    tiles.set("cached", count(sum(info.queues, "cached")), { sub: info.queues.length < info.queueCount ? tr`of the queues below` : "" });
    tiles.set("rate", rate(sum(info.rates, "consumeRate")));
    const failed = sum(info.rates, "failed");
    tiles.set("failed", rate(sum(info.rates, "failedRate")), { tone: failed ? "warn" : "", sub: failed ? tr`${count(failed)} in 1 h` : "" });
    tiles.set("up", started ? duration((Date.now() - started) / 1000) : "–", { tone: "words", sub: started ? moment(started) : "" });
    queues.update(info.queues);
    const isMore = info.queues.length + info.popQueues.length < info.queueCount;
    cut.hidden = !isMore;
    put(cut, isMore ? tr`The first ${count(info.queues.length + info.popQueues.length)} of ${count(info.queueCount)} queues.` : "");
    popQueues.update(info.popQueues);
    pops.hidden = info.popQueues.length === 0;
    rates.update(info.rates);
    subscriptions.update(info.subscriptions);
    const now = JSON.stringify(p);
    if (now !== shown) { shown = now; properties.replaceChildren(facts(Object.entries(p))); }
    return refresh;
  });
}

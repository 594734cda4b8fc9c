// Health of the console: its sampling, its duration, its memory.
import { get } from "../api.js";
import { h } from "../dom.js";
import { count, duration, size } from "../format.js";
import { facts, head, section, Tiles, Troubles } from "../parts.js";
import { listed, tr } from "../language.js";

const PAGES = { overview: tr`overview`, topics: tr`topics`, topic: tr`topic`, groups: tr`groups` };

export default function health(view) {
  view.title(tr`Console`);
  const tiles = new Tiles([["pass", tr`Last sampling`], ["interval", tr`Interval`], ["memory", tr`Memory`], ["samples", tr`Samples`]]);
  const troubles = new Troubles();
  const more = h("div", { class: "card" });
  view.show(head(tr`Console`, { sub: tr`Health of this console.` }), troubles.element, tiles.element, section(tr`Details`, more));
  view.poll(async () => {
    const data = await get("/api/health", {}, { signal: view.gone.signal });
    troubles.show([...(data.trouble ? [[tr`Cluster`, data.trouble]] : []), ...Object.entries(data.failed)]);
    tiles.set("pass", tr`${data.passSeconds} s`, { sub: tr`${count(data.passes)} samplings` });
    tiles.set("interval", duration(data.interval), { sub: data.looking.length ? tr`for ${listed(data.looking.map((page) => PAGES[page] ?? page))}` : tr`no page open` });
    tiles.set("memory", size(data.memory), { sub: tr`${data.threads} threads` });
    tiles.set("samples", count(data.samples), { sub: size(data.sampleBytes) });
    more.replaceChildren(facts([
      [tr`Version`, data.version], [tr`Name servers`, data.nameServer], [tr`Up for`, duration((Date.now() - data.started) / 1000)],
      ...Object.entries(data.ages).map(([what, age]) => [tr`Age of ${PAGES[what] ?? what}`, duration(age)]), [tr`Pending requests`, count(data.waiting)],
      [tr`Avro`, data.avro ? tr`yes` : tr`no: pip install 'spark-rocket[avro]'`], [tr`Changes`, data.readOnly ? tr`disabled (--read-only)` : tr`enabled`],
    ]));
    return data.refresh;
  });
}

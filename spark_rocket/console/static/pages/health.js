// Health of the console: its sampling, its duration, its memory.
import { get } from "../api.js";
import { h } from "../dom.js";
import { count, duration, size } from "../format.js";
import { facts, head, section, Tiles, Troubles } from "../parts.js";

export default function health(view) {
  view.title("Console");
  const tiles = new Tiles([["pass", "Last sampling"], ["interval", "Interval"], ["memory", "Memory"], ["samples", "Samples"]]);
  const troubles = new Troubles();
  const more = h("div", { class: "card" });
  view.show(head("Console", { sub: "Health of this console." }), troubles.element, tiles.element, section("Details", more));
  view.poll(async () => {
    const data = await get("/api/health", {}, { signal: view.gone.signal });
    troubles.show([...(data.trouble ? [["Cluster", data.trouble]] : []), ...Object.entries(data.failed)]);
    tiles.set("pass", `${data.passSeconds} s`, { sub: `${count(data.passes)} samplings` });
    tiles.set("interval", duration(data.interval), { sub: data.looking.length ? `for ${data.looking.join(", ")}` : "no page open" });
    tiles.set("memory", size(data.memory), { sub: `${data.threads} threads` });
    tiles.set("samples", count(data.samples), { sub: size(data.sampleBytes) });
    more.replaceChildren(facts([
      ["Version", data.version], ["Name servers", data.nameServer], ["Up for", duration((Date.now() - data.started) / 1000)],
      ...Object.entries(data.ages).map(([what, age]) => [`Age of ${what}`, duration(age)]), ["Pending requests", count(data.waiting)],
      ["Avro", data.avro ? "yes" : "no: pip install 'spark-rocket[avro]'"], ["Changes", data.readOnly ? "disabled (--read-only)" : "enabled"],
    ]));
    return data.refresh;
  });
}

// The console's own health: what it asks, how long that takes, what it holds.
import { get } from "../api.js";
import { h } from "../dom.js";
import { count, duration, size } from "../format.js";
import { facts, head, section, Tiles, Troubles } from "../parts.js";

export default function health(view) {
  view.title("Console");
  const tiles = new Tiles([["pass", "Last round"], ["interval", "Next round after"], ["memory", "Memory"], ["samples", "Samples kept"]]);
  const troubles = new Troubles();
  const more = h("div", { class: "card" });
  view.show(head("Console", { sub: "How this console itself is." }), troubles.element, tiles.element, section("Details", more));
  view.poll(async () => {
    const data = await get("/api/health", {}, { signal: view.gone.signal });
    troubles.show([...(data.trouble ? [["Cluster", data.trouble]] : []), ...Object.entries(data.failed)]);
    tiles.set("pass", `${data.passSeconds} s`, { sub: `${count(data.passes)} rounds so far` });
    tiles.set("interval", duration(data.interval), { sub: data.looking.length ? `for ${data.looking.join(", ")}` : "nobody looks" });
    tiles.set("memory", size(data.memory), { sub: `${data.threads} threads` });
    tiles.set("samples", count(data.samples), { sub: size(data.sampleBytes) });
    more.replaceChildren(facts([
      ["Version", data.version], ["Name servers", data.nameServer], ["Up for", duration((Date.now() - data.started) / 1000)],
      ...Object.entries(data.ages).map(([what, age]) => [`Age of ${what}`, duration(age)]), ["Questions waiting", count(data.waiting)],
      ["Avro", data.avro ? "yes" : "no: pip install 'spark-rocket[avro]'"], ["Changes", data.readOnly ? "not allowed (--read-only)" : "allowed"],
    ]));
    return data.refresh;
  });
}

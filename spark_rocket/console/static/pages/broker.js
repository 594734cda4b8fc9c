// A broker: its statistics and settings.
import { get } from "../api.js";
import { h } from "../dom.js";
import { facts, head, section } from "../parts.js";

export default function broker(view) {
  const address = view.query.get("address") ?? "";
  view.title(address);
  const search = h("input", { type: "search", placeholder: "Find a name …", "aria-label": "Find a name" });
  const state = h("div");
  const settings = h("div");
  let data = { runtime: {}, config: {} };
  const draw = () => {
    const wanted = search.value.trim().toLowerCase();
    const of = (table) => facts(Object.entries(table).filter(([name]) => name.toLowerCase().includes(wanted)).sort());
    state.replaceChildren(of(data.runtime));
    settings.replaceChildren(of(data.config));
  };
  search.addEventListener("input", draw);
  view.show(head(`Broker ${address}`, { back: ["/", "Overview"] }), h("div", { class: "toolbar" }, search),
    h("div", { class: "halves" }, section("State", h("div", { class: "card" }, state)), section("Settings", h("div", { class: "card" }, settings))));
  view.poll(async () => {
    data = await get("/api/broker", { address }, { signal: view.gone.signal });
    draw();
    return 10000;
  });
}

// Groups with dead letters.
import { get } from "../api.js";
import { deadPath, h } from "../dom.js";
import { ago, count, moment } from "../format.js";
import { head, Table, Troubles } from "../parts.js";

export default function dead(view) {
  view.title("Dead letters");
  const troubles = new Troubles();
  const table = new Table({
    caption: "Groups with dead letters", key: (g) => g.name,
    empty: "No group has dead letters. A message becomes a dead letter when a group has used all of its retries.",
    columns: [
      { key: "name", title: "Group", main: true, text: (g) => g.name, href: (g) => deadPath(g.name), sub: (g) => g.topic },
      { key: "messages", title: "Dead letters", num: true, text: (g) => count(g.messages), tone: (g) => (g.messages ? "warn" : "") },
      { key: "last", title: "Last", num: true, text: (g) => ago(g.lastUpdate), hint: (g) => moment(g.lastUpdate) },
    ],
  });
  view.show(head("Dead letters", { sub: "Messages that a group could not consume within its retries. You can resend them until they expire." }), troubles.element, h("div", {}, table.element));
  view.poll(async () => {
    const data = await get("/api/dead-letters", {}, { signal: view.gone.signal });
    troubles.show(Object.entries(data.failed));
    table.update(data.rows);
    return data.refresh;
  });
}

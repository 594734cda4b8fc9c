// Groups and topics with dead letters.
import { get } from "../api.js";
import { deadPath, deadTopicPath, h, put, topicPath } from "../dom.js";
import { ago, count, moment } from "../format.js";
import { head, section, Table, Troubles } from "../parts.js";

export default function dead(view) {
  view.title("Dead letters");
  const troubles = new Troubles();
  const messages = { key: "messages", title: "Dead letters", num: true, text: (g) => count(g.messages), tone: (g) => (g.messages ? "warn" : "") };
  const last = { key: "last", title: "Last", num: true, text: (g) => ago(g.lastUpdate), hint: (g) => moment(g.lastUpdate) };
  const groups = new Table({
    caption: "Groups with dead letters", key: (g) => g.name,
    empty: "No group has dead letters. A message becomes a dead letter when a group has used all of its retries.",
    columns: [{ key: "name", title: "Group", main: true, text: (g) => g.name, href: (g) => deadPath(g.name), sub: (g) => g.topic }, messages, last],
  });
  const topics = new Table({
    caption: "Topics with dead letters of Spark queries", key: (t) => t.name,
    empty: "No topic has dead letters of Spark queries. A query with badRecords=deadLetter writes the messages that it cannot decode to a topic.",
    columns: [
      { key: "name", title: "Topic", main: true, text: (t) => t.name, href: (t) => deadTopicPath(t.name) },
      { key: "origin", title: "Last origin", text: (t) => t.origin, href: (t) => topicPath(t.origin) },
      { key: "reason", title: "Last reason", text: (t) => t.reason, tone: () => "reason", hint: (t) => t.reason },
      messages, last,
    ],
  });
  const unknown = h("p", { class: "muted", "aria-live": "polite" });
  groups.element.hidden = topics.element.hidden = true;
  view.show(head("Dead letters", { sub: "Messages that a group could not consume within its retries, and messages that a Spark query could not decode. You can resend them until they expire." }),
    troubles.element, section("Of consumer groups", groups.element), section("Of Spark queries", topics.element, unknown));
  view.poll(async () => {
    const data = await get("/api/dead-letters", {}, { signal: view.gone.signal });
    troubles.show([...(data.trouble ? [["Cluster", data.trouble]] : []), ...Object.entries(data.failed)]);
    view.cluster(data);
    groups.element.hidden = data.rows === null;
    if (data.rows) groups.update(data.rows);
    topics.element.hidden = data.topics === null || (data.unknown > 0 && !data.topics.length);
    if (data.topics) topics.update(data.topics);
    put(unknown, data.topics === null ? "Loading the topics …" : data.unknown ? `Reading the last messages of ${count(data.unknown)} more topics …` : "");
    return data.refresh;
  });
}

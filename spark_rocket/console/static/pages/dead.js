// Groups and topics with dead letters.
import { get } from "../api.js";
import { deadPath, deadTopicPath, h, put, topicPath } from "../dom.js";
import { ago, count, moment } from "../format.js";
import { head, section, Table, Troubles } from "../parts.js";
import { reasonText, tr } from "../language.js";

export default function dead(view) {
  view.title(tr`Dead letters`);
  const troubles = new Troubles();
  const messages = { key: "messages", title: tr`Dead letters`, num: true, text: (g) => count(g.messages), tone: (g) => (g.messages ? "warn" : "") };
  const last = { key: "last", title: tr`Last`, num: true, text: (g) => ago(g.lastUpdate), hint: (g) => moment(g.lastUpdate) };
  const groups = new Table({
    caption: tr`Groups with dead letters`, key: (g) => g.name,
    empty: tr`No group has dead letters. A message becomes a dead letter when a group has used all of its retries.`,
    columns: [{ key: "name", title: tr`Group`, main: true, text: (g) => g.name, href: (g) => deadPath(g.name), sub: (g) => g.topic }, messages, last],
  });
  const topics = new Table({
    caption: tr`Topics with dead letters of Spark queries`, key: (t) => t.name,
    empty: tr`No topic has dead letters of Spark queries. A query with badRecords=deadLetter writes the messages that it cannot decode to a topic.`,
    columns: [
      { key: "name", title: tr`Topic`, main: true, text: (t) => t.name, href: (t) => deadTopicPath(t.name) },
      { key: "origin", title: tr`Last origin`, text: (t) => t.origin, href: (t) => topicPath(t.origin) },
      { key: "reason", title: tr`Last reason`, text: (t) => reasonText(t.reason), tone: () => "reason", hint: (t) => t.reason },
      messages, last,
    ],
  });
  const unknown = h("p", { class: "muted", "aria-live": "polite" });
  groups.element.hidden = topics.element.hidden = true;
  view.show(head(tr`Dead letters`, { sub: tr`Messages that a group could not consume within its retries, and messages that a Spark query could not decode. You can resend them until they expire.` }),
    troubles.element, section(tr`Of consumer groups`, groups.element), section(tr`Of Spark queries`, topics.element, unknown));
  view.poll(async () => {
    const data = await get("/api/dead-letters", {}, { signal: view.gone.signal });
    troubles.show([...(data.trouble ? [[tr`Cluster`, data.trouble]] : []), ...Object.entries(data.failed)]);
    view.cluster(data);
    groups.element.hidden = data.rows === null;
    if (data.rows) groups.update(data.rows);
    topics.element.hidden = data.topics === null || (data.unknown > 0 && !data.topics.length);
    if (data.topics) topics.update(data.topics);
    put(unknown, data.topics === null ? tr`Loading the topics …` : data.unknown ? tr`Reading the last messages of ${count(data.unknown)} more topics …` : "");
    return data.refresh;
  });
}

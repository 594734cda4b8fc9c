// A message: body in every form, properties, times, consumer status, resending.
import { get, post } from "../api.js";
import { groupPath, h, originPath, originPlace, topicPath } from "../dom.js";
import { count, moment, size, zone } from "../format.js";
import { button, choice, dialog, facts, field, head, linkButton, note, section, Table, trouble } from "../parts.js";

const FORMS = { json: "JSON", avro: "Avro", text: "Text", binary: "Hex" };
const STATUS = {
  CONSUMED: ["consumed", "pill good"], CONSUMED_BUT_FILTERED: ["filtered out", "pill"], PULL: ["pull consumer", "pill info"],
  NOT_CONSUME_YET: ["not yet", "pill warn"], NOT_CONSUMED_YET: ["not yet", "pill warn"], NOT_ONLINE: ["not online", "pill"], CONSUME_BROADCASTING: ["broadcasting", "pill info"], UNKNOWN: ["unknown", "pill"],
};

export default function message(view) {
  const place = Object.fromEntries(["topic", "broker", "queue", "offset"].map((name) => [name, view.query.get(name) ?? ""]));
  const key = { ...place, queue: Number(place.queue), offset: Number(place.offset) };
  view.title(`Message in ${place.topic}`);
  const content = h("div");
  let origin = null;
  view.show(
    head("Message", { sub: `${place.topic} · ${place.broker} · queue ${place.queue} · offset ${place.offset}`, back: [`/messages?${new URLSearchParams({ topic: place.topic })}`, `Messages of ${place.topic}`], actions: [
      h("a", { class: "button", href: `/api/message/body?${new URLSearchParams(place)}`, download: true }, "Download body"),
      linkButton("Send a copy", `/send?${new URLSearchParams({ like: JSON.stringify(key) })}`, "change"),
      button("Resend", () => again(key, origin), "change"),
    ] }), content);
  view.again = () => {};
  view.try(async () => {
    content.replaceChildren(h("p", { class: "muted" }, "Loading …"));
    let data;
    try { data = await get("/api/message", place, { signal: view.gone.signal }); } catch (error) { content.replaceChildren(); throw error; }
    const m = data.message;
    origin = m.origin;
    const at = m.offset === 0 ? null : { ...place, offset: m.offset - 1 };
    const next = { ...place, offset: m.offset + 1 };
    content.replaceChildren(...[
      origin && section("Origin", h("div", { class: "card" }, facts([
        ["Topic", h("a", { href: topicPath(origin.topic) }, origin.topic)], ["Message", h("a", { href: originPath(origin) }, originPlace(origin) || "unknown")],
        ...(origin.attempts === null ? [] : [["Failed attempts", count(origin.attempts)]]), ...(origin.reason === null ? [] : [["Reason", origin.reason]]), ...(origin.missing === null ? [] : [["Missing here", origin.missing]]),
      ]))),
      section("Body", bodyOf(view, place, data)),
      h("div", { class: "halves" },
        section("Message", h("div", { class: "card" }, facts([
          ["Id", h("code", {}, m.msgId)], ["Offset id", h("code", {}, m.offsetMsgId)], ["Topic", h("a", { href: topicPath(m.topic) }, m.topic)], ["Keys", m.keys || null], ["Tags", m.tags || null],
          ["Sent", `${moment(m.born, { millis: true })} ${zone(m.born)} by ${m.bornHost}`], ["Stored", `${moment(m.stored, { millis: true })} ${zone(m.stored)} at ${m.storeHost}`],
          ["Size", `${count(m.size)} bytes, ${count(m.storeSize)} in the log at ${count(m.physicalOffset)}`], ["Deliveries before", count(m.retries)], ["Flags", `${m.flag}, system ${m.sysFlag}`],
        ]))),
        section("Properties", h("div", { class: "card" }, Object.keys(m.properties).length ? facts(Object.entries(m.properties)) : h("p", { class: "muted" }, "No properties.")))),
      section("Consumer groups", tracks(view, place)),
      section("Trace", traces(view, m.msgId)),
      h("p", { class: "pager" }, at ? h("a", { href: `/message?${new URLSearchParams(at)}` }, "‹ Previous") : h("span"), h("a", { href: `/message?${new URLSearchParams(next)}` }, "Next ›"))].filter(Boolean));
  });
}

function bodyOf(view, place, data) {
  let body = data.body;
  const shown = h("pre", { tabindex: "0", "aria-label": "Body" });
  const notes = h("div");
  const holder = h("div", { class: "card" });
  const schema = h("textarea", { rows: 5, spellcheck: "false", placeholder: '{"type": "record", "name": …}' });
  const avro = h("details", {}, h("summary", {}, "Decode with an Avro schema"), field("Schema", schema), button("Decode", () => view.try(async () => {
    body = (await post("/api/message/decode", { ...place, queue: Number(place.queue), offset: Number(place.offset), schema: schema.value })).body;
    draw(body.avro === null ? "binary" : "avro");
  })));
  const draw = (form) => {
    const forms = Object.entries(FORMS).filter(([name]) => name === "binary" || body[name] !== null);
    shown.textContent = form === "binary" ? body.hex : body[form];
    if (!body.size) shown.textContent = "(empty)";
    const cut = form === "binary" ? body.hexCut : body.textCut;
    notes.replaceChildren(...[
      body.avroProblem ? trouble({ code: "NOT_AVRO", text: body.avroProblem, remedy: "" }, { tone: "warn" }) : null,
      cut ? h("p", { class: "muted" }, `The beginning of ${size(body.size)}. Download the body to see all of it.`) : null].filter(Boolean));
    holder.replaceChildren(choice("Form", "form", forms, form, draw), notes, shown, avro);
  };
  draw(body.kind);
  return holder;
}

function tracks(view, place) {
  const holder = h("div", { class: "card" }, h("p", { class: "muted" }, "Loading the status of groups …"));
  view.try(async () => {
    const data = await get("/api/message/track", place, { signal: view.gone.signal });
    if (data.trouble) { holder.replaceChildren(trouble(data.trouble)); return; }
    const table = new Table({
      caption: "Consumer groups", key: (t) => t.group, empty: "No groups consume this topic.",
      columns: [
        { key: "group", title: "Group", main: true, text: (t) => t.group, href: (t) => groupPath(t.group) },
        { key: "status", title: "State", text: (t) => (STATUS[t.status] ?? [t.status])[0], tone: (t) => (STATUS[t.status] ?? ["", "pill"])[1] },
        { key: "detail", title: "Reason", text: (t) => t.detail },
      ],
    });
    table.update(data.rows);
    holder.replaceWith(table.element);
  });
  return holder;
}

function traces(view, id) {
  const table = new Table({
    caption: "Trace", key: (e) => e.key, empty: "No trace events. Clients record them if message trace is enabled (enableMsgTrace). They expire like other messages.",
    columns: [
      { key: "kind", title: "What", main: true, text: (e) => e.kind.toLowerCase().replace(/_/g, " ") },
      { key: "time", title: "When", text: (e) => moment(e.time, { millis: true }) },
      { key: "group", title: "Group", text: (e) => e.group, sub: (e) => e.client },
      { key: "outcome", title: "State", text: (e) => (e.outcome ?? "pending").toLowerCase(), tone: (e) => (e.outcome === "SUCCESS" ? "pill good" : e.outcome === null ? "pill" : "pill warn") },
      { key: "cost", title: "Took", num: true, text: (e) => (e.cost === null ? "–" : `${count(e.cost)} ms`) },
    ],
  });
  table.element.hidden = true;
  view.try(async () => {
    table.update((await get("/api/message/trace", { id }, { signal: view.gone.signal })).rows);
    table.element.hidden = false;
  });
  return table.element;
}

async function again(key, origin) {
  const group = h("input", { autocomplete: "off", spellcheck: "false", placeholder: "all groups" });
  const done = await dialog({
    title: "Resend", action: "Resend",
    content: [h("p", {}, `Sends a copy with a new id to ${origin ? `its original topic ${origin.topic}` : "the topic"}, for every group, or to one group only.`), field("Only to this group", group)],
    act: () => post("/api/message/resend", { ...key, ...(group.value.trim() ? { group: group.value.trim() } : {}) }),
  });
  if (done) note(done.done);
}

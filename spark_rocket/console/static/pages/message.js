// A message: body in every form, properties, times, consumer status, resending.
import { get, post } from "../api.js";
import { groupPath, h, originPath, originPlace, topicPath } from "../dom.js";
import { count, millis, moment, size } from "../format.js";
import { button, choice, dialog, facts, field, head, linkButton, note, section, Table, trouble } from "../parts.js";
import { reasonText, tr } from "../language.js";

const FORMS = { json: "JSON", avro: tr`Avro`, text: tr`Text`, binary: tr`Hex` };
const OUTCOMES = { SUCCESS: tr`success`, FAILED: tr`failed`, TIME_OUT: tr`timeout`, EXCEPTION: tr`exception` };
const STATUS = {
  CONSUMED: [tr`consumed`, "pill good"], CONSUMED_BUT_FILTERED: [tr`filtered out`, "pill"], PULL: [tr`pull consumer`, "pill info"],
  NOT_CONSUME_YET: [tr`not yet`, "pill warn"], NOT_CONSUMED_YET: [tr`not yet`, "pill warn"], NOT_ONLINE: [tr`not online`, "pill"], CONSUME_BROADCASTING: [tr`broadcasting`, "pill info"], UNKNOWN: [tr`unknown`, "pill"],
};

export default function message(view) {
  const place = Object.fromEntries(["topic", "broker", "queue", "offset"].map((name) => [name, view.query.get(name) ?? ""]));
  const key = { ...place, queue: Number(place.queue), offset: Number(place.offset) };
  view.title(tr`Message in ${place.topic}`);
  const content = h("div");
  let origin = null;
  let resent = null;
  view.show(
    head(tr`Message`, { sub: tr`${place.topic} · ${place.broker} · queue ${place.queue} · offset ${place.offset}`, back: [`/messages?${new URLSearchParams({ topic: place.topic })}`, tr`Messages of ${place.topic}`], actions: [
      h("a", { class: "button", href: `/api/message/body?${new URLSearchParams(place)}`, download: true }, tr`Download body`),
      linkButton(tr`Send a copy`, `/send?${new URLSearchParams({ like: JSON.stringify(key) })}`, "change"),
      button(tr`Resend`, async () => { if (await again(key, origin, resent)) load(); }, "change"),
    ] }), content);
  view.again = () => {};
  const load = () => view.try(async () => {
    content.replaceChildren(h("p", { class: "muted" }, tr`Loading …`));
    let data;
    try { data = await get("/api/message", place, { signal: view.gone.signal }); } catch (error) { content.replaceChildren(); throw error; }
    const m = data.message;
    origin = m.origin;
    resent = m.resent;
    const at = m.offset === 0 ? null : { ...place, offset: m.offset - 1 };
    const next = { ...place, offset: m.offset + 1 };
    content.replaceChildren(...[
      origin && section(tr`Origin`, h("div", { class: "card" }, facts([
        [tr`Topic`, h("a", { href: topicPath(origin.topic) }, origin.topic)], [tr`Message`, h("a", { href: originPath(origin) }, originPlace(origin) || tr`unknown`)],
        ...(origin.attempts === null ? [] : [[tr`Failed attempts`, count(origin.attempts)]]), ...(origin.reason === null ? [] : [[tr`Reason`, h("span", { title: origin.reason }, reasonText(origin.reason))]]), ...(origin.missing === null ? [] : [[tr`Missing here`, origin.missing]]),
      ]))),
      section(tr`Body`, bodyOf(view, place, data)),
      h("div", { class: "halves" },
        section(tr`Message`, h("div", { class: "card" }, facts([
          [tr`Id`, h("code", {}, m.msgId)], [tr`Offset id`, h("code", {}, m.offsetMsgId)], [tr`Topic`, h("a", { href: topicPath(m.topic) }, m.topic)], [tr`Keys`, m.keys || null], [tr`Tags`, m.tags || null],
          [tr`Sent`, tr`${moment(m.born, { millis: true })} by ${m.bornHost}`], [tr`Stored`, tr`${moment(m.stored, { millis: true })} at ${m.storeHost}`],
          [tr`Size`, tr`${count(m.size)} bytes, ${count(m.storeSize)} in the log at ${count(m.physicalOffset)}`], [tr`Deliveries before`, count(m.retries)], ...(resent ? [[tr`Resent`, moment(resent)]] : []), [tr`Flags`, tr`${m.flag}, system ${m.sysFlag}`],
        ]))),
        section(tr`Properties`, h("div", { class: "card" }, Object.keys(m.properties).length ? facts(Object.entries(m.properties)) : h("p", { class: "muted" }, tr`No properties.`)))),
      section(tr`Consumer groups`, tracks(view, place)),
      section(tr`Trace`, traces(view, m.msgId)),
      h("p", { class: "pager" }, at ? h("a", { href: `/message?${new URLSearchParams(at)}` }, tr`‹ Previous`) : h("span"), h("a", { href: `/message?${new URLSearchParams(next)}` }, tr`Next ›`))].filter(Boolean));
  });
  load();
}

function bodyOf(view, place, data) {
  let body = data.body;
  const shown = h("pre", { tabindex: "0", "aria-label": tr`Body` });
  const notes = h("div");
  const holder = h("div", { class: "card" });
  const schema = h("textarea", { rows: 5, spellcheck: "false", placeholder: '{"type": "record", "name": …}' });
  const avro = h("details", {}, h("summary", {}, tr`Decode with an Avro schema`), field(tr`Schema`, schema), button(tr`Decode`, () => view.try(async () => {
    body = (await post("/api/message/decode", { ...place, queue: Number(place.queue), offset: Number(place.offset), schema: schema.value })).body;
    draw(body.avro === null ? "binary" : "avro");
  })));
  const draw = (form) => {
    const forms = Object.entries(FORMS).filter(([name]) => name === "binary" || body[name] !== null);
    shown.textContent = form === "binary" ? body.hex : body[form];
    if (!body.size) shown.textContent = tr`(empty)`;
    const cut = form === "binary" ? body.hexCut : body.textCut;
    notes.replaceChildren(...[
      body.avroProblem ? trouble({ code: "NOT_AVRO", text: body.avroProblem, remedy: "" }, { tone: "warn" }) : null,
      cut ? h("p", { class: "muted" }, tr`The beginning of ${size(body.size)}. Download the body to see all of it.`) : null].filter(Boolean));
    holder.replaceChildren(choice(tr`Form`, "form", forms, form, draw), notes, shown, avro);
  };
  draw(body.kind);
  return holder;
}

/** What shows the state of a message in a group. */
function evidence({ status, committed }, offset) {
  if (status === "CONSUME_BROADCASTING") return tr`each member stores its own offsets`;
  return committed === null ? tr`no committed offset in the queue` : tr`committed offset ${count(committed)}, message offset ${count(offset)}`;
}

function tracks(view, place) {
  const holder = h("div", { class: "card" }, h("p", { class: "muted" }, tr`Loading the status of groups …`));
  view.try(async () => {
    const data = await get("/api/message/track", place, { signal: view.gone.signal });
    if (data.trouble) { holder.replaceChildren(trouble(data.trouble)); return; }
    const table = new Table({
      caption: tr`Consumer groups`, key: (t) => t.group, empty: tr`No groups consume this topic.`,
      columns: [
        { key: "group", title: tr`Group`, main: true, text: (t) => t.group, href: (t) => groupPath(t.group) },
        { key: "state", title: tr`State`, text: (t) => (STATUS[t.status] ?? [t.status])[0], tone: (t) => (STATUS[t.status] ?? ["", "pill"])[1] },
        { key: "detail", title: tr`Reason`, text: (t) => evidence(t, Number(place.offset)) },
      ],
    });
    table.update(data.rows);
    holder.replaceWith(table.element);
  });
  return holder;
}

function traces(view, id) {
  const table = new Table({
    caption: tr`Trace`, key: (e) => e.key, empty: tr`No trace events. Clients record them if message trace is enabled (enableMsgTrace). They expire like other messages.`,
    columns: [
      { key: "kind", title: tr`What`, main: true, text: (e) => e.kind.toLowerCase().replace(/_/g, " ") },
      { key: "time", title: tr`When`, text: (e) => moment(e.time, { millis: true }) },
      { key: "group", title: tr`Group`, text: (e) => e.group, sub: (e) => e.client },
      { key: "outcome", title: tr`State`, text: (e) => (e.outcome === null ? tr`pending` : OUTCOMES[e.outcome] ?? e.outcome.toLowerCase()), tone: (e) => (e.outcome === "SUCCESS" ? "pill good" : e.outcome === null ? "pill" : "pill warn") },
      { key: "cost", title: tr`Took`, num: true, text: (e) => millis(e.cost) },
    ],
  });
  table.element.hidden = true;
  view.try(async () => {
    table.update((await get("/api/message/trace", { id }, { signal: view.gone.signal })).rows);
    table.element.hidden = false;
  });
  return table.element;
}

/** Returns whether the message was resent. `resent`: when this was done before. */
async function again(key, origin, resent) {
  const group = h("input", { autocomplete: "off", spellcheck: "false", placeholder: tr`all groups` });
  const done = await dialog({
    title: tr`Resend`, action: tr`Resend`,
    content: [h("p", {}, origin
      ? tr`Resends it with a new id to its original topic ${origin.topic}, for every group, or to one group only.`
      : tr`Resends it with a new id to the topic, for every group, or to one group only.`), resent ? h("p", { class: "trouble warn" }, tr`It was already resent at ${moment(resent)}.`) : null, field(tr`Only to this group`, group)],
    act: () => post("/api/message/resend", { ...key, ...(group.value.trim() ? { group: group.value.trim() } : {}) }),
  });
  if (!done) return false;
  const id = done.msgId;
  note(group.value.trim() ? tr`Resent to group ${group.value.trim()} with id ${id}.` : tr`Resent to topic ${origin?.topic ?? key.topic} with id ${id}.`);
  return true;
}

// Send a message.
import { get, post } from "../api.js";
import { h, messagePath } from "../dom.js";
import { button, field, head, names, note } from "../parts.js";
import { tr } from "../language.js";

const OWN = new Set(["KEYS", "TAGS", "__SHARDINGKEY", "UNIQ_KEY", "WAIT", "CLUSTER", "MIN_OFFSET", "MAX_OFFSET", "DELAY", "MSG_REGION", "TRACE_ON", "REAL_TOPIC", "REAL_QID", "PGROUP", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "CONSUME_START_TIME", "RECONSUME_TIME", "MAX_RECONSUME_TIMES"]);

export default function send(view) {
  view.title(tr`Send a message`);
  view.again = () => {};
  const list = names([]);
  const text = (more = {}) => h("input", { autocomplete: "off", spellcheck: "false", ...more });
  const topic = text({ required: true, list: list.id, value: view.query.get("topic") ?? "" });
  const tags = text();
  const keys = text();
  const shardingKey = text();
  const delay = h("input", { type: "number", min: 0, step: "any", placeholder: "0" });
  const body = h("textarea", { rows: 9, spellcheck: "false" });
  const properties = h("textarea", { rows: 3, spellcheck: "false", placeholder: "name=value" });
  const done = h("div", { "aria-live": "polite" });
  const form = h("form", { class: "card wide" },
    field(tr`Topic`, topic), list, field(tr`Body`, body),
    h("div", { class: "fields" }, field(tr`Keys`, keys, { hint: tr`Separated by spaces; used to find messages.` }), field(tr`Tags`, tags, { hint: tr`Used by the filters of consumers.` }), field(tr`Sharding key`, shardingKey, { hint: tr`Messages with the same key go to the same queue.` }), field(tr`Delay in seconds`, delay)),
    field(tr`Properties`, properties, { hint: tr`One per line: name=value.` }),
    h("div", { class: "actions" }, button(tr`Format JSON`, () => { try { body.value = JSON.stringify(JSON.parse(body.value), null, 2); } catch (e) { note(tr`Invalid JSON: ${e.message}`, "bad"); } }, "quiet"), h("button", { type: "submit", class: "primary change" }, tr`Send`)),
    done);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const own = {};
    for (const line of properties.value.split("\n")) {
      const at = line.indexOf("=");
      if (at > 0) own[line.slice(0, at).trim()] = line.slice(at + 1);
      else if (line.trim()) { note(tr`Invalid property “${line.trim()}”: use name=value.`, "bad"); return; }
    }
    const go = form.querySelector("button[type=submit]");
    go.disabled = true;
    done.replaceChildren();
    view.try(async () => {
      const sent = await post("/api/messages", { topic: topic.value, body: body.value, keys: keys.value, tags: tags.value, shardingKey: shardingKey.value, delay: Math.round(Number(delay.value || 0) * 1000), properties: own });
      view.alerts.replaceChildren();
      view.alerts.shown = "";
      const is = Number(delay.value || 0) > 0;
      done.replaceChildren(h("p", { class: "trouble good" }, `${sent.status}. `, tr`Sent to queue ${sent.queue} of ${sent.topic} on ${sent.broker}, offset ${sent.offset}.`, " ", is ? tr`It is delivered after the delay.` : h("a", { href: messagePath(sent) }, tr`Show it`)));
    }).finally(() => { go.disabled = false; });
  });
  view.show(head(tr`Send a message`), form);
  view.try(async () => list.replaceChildren(...(await get("/api/topic-names", {}, { signal: view.gone.signal })).names.map((name) => h("option", { value: name }))));
  const like = view.query.get("like");
  if (like) view.try(async () => {
    const data = await get("/api/message", JSON.parse(like), { signal: view.gone.signal });
    const m = data.message;
    topic.value = m.topic;
    keys.value = m.keys ?? "";
    tags.value = m.tags ?? "";
    shardingKey.value = m.properties.__SHARDINGKEY ?? "";
    properties.value = Object.entries(m.properties).filter(([name]) => !OWN.has(name)).map(([name, value]) => `${name}=${value}`).join("\n");
    if (data.body.text !== null && !data.body.textCut) body.value = data.body.text;
    else note(tr`The body is not text, or too long for the form: enter a body.`, "bad");
  });
}

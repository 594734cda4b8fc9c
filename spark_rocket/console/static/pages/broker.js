// A broker: its statistics, its settings, and changes of settings.
import { get, post } from "../api.js";
import { h } from "../dom.js";
import { button, dialog, facts, field, head, note, section } from "../parts.js";
import { tr } from "../language.js";

export default function broker(view) {
  const address = view.query.get("address") ?? "";
  view.title(address);
  const search = h("input", { type: "search", placeholder: tr`Find a name …`, "aria-label": tr`Find a name` });
  const only = h("input", { type: "checkbox", id: "changeable" });
  const state = h("div");
  const settings = h("div");
  let data = { runtime: {}, config: {}, changeable: [], decides: false };
  const wanted = (table) => Object.entries(table).filter(([name]) => name.toLowerCase().includes(search.value.trim().toLowerCase())).sort();
  const drawState = () => state.replaceChildren(facts(wanted(data.runtime)));
  const drawSettings = () => {
    const changeable = new Set(data.changeable);
    const shown = wanted(data.config).filter(([name]) => !only.checked || changeable.has(name));
    settings.replaceChildren(shown.length ? facts(shown.map(([name, value]) => [name, changeable.has(name) ? setting(name, value) : value])) : h("p", { class: "muted" }, tr`No matching settings.`));
  };
  const setting = (name, value) => {
    const edit = button(tr`Change`, () => change(view, address, name, value, data.decides), "quiet small change");
    edit.setAttribute("aria-label", tr`Change ${name}`);
    return h("span", { class: "setting" }, h("span", {}, value), edit);
  };
  search.addEventListener("input", () => { drawState(); drawSettings(); });
  only.addEventListener("change", drawSettings);
  view.show(head(tr`Broker ${address}`, { back: ["/", tr`Overview`] }),
    h("div", { class: "toolbar" }, search, h("span", { class: "check change" }, only, h("label", { for: "changeable" }, tr`Only settings that can be changed`))),
    h("div", { class: "halves" }, section(tr`State`, h("div", { class: "card" }, state)), section(tr`Settings`, h("div", { class: "card" }, settings))));
  let shownSettings = "";
  view.poll(async () => {
    data = await get("/api/broker", { address }, { signal: view.gone.signal });
    drawState();
    const now = JSON.stringify([data.config, data.changeable]);
    if (now !== shownSettings) { shownSettings = now; drawSettings(); } // an unchanged list keeps the focus on its buttons
    return 10000;
  });
}

/** Enter a new value, confirm the change, apply it. */
async function change(view, address, name, value, decides) {
  const isFlag = value === "true" || value === "false";
  const input = isFlag
    ? h("select", {}, ["true", "false"].map((one) => h("option", { value: one }, one)))
    : h("input", { value, autocomplete: "off", spellcheck: "false", autocapitalize: "off" });
  input.value = value;
  const entered = await dialog({
    title: tr`Change ${name}`, action: tr`Continue`,
    content: field(tr`New value`, input, { hint: tr`Now: ${orEmpty(value)}` }),
    act: () => ({ value: input.value.trim() }),
  });
  if (!entered || entered.value === value) return;
  const done = await dialog({
    title: tr`Change ${name}`, action: tr`Change`, danger: true,
    content: [
      facts([[tr`Broker`, address], [tr`Setting`, name], [tr`Now`, orEmpty(value)], [tr`New`, orEmpty(entered.value)]]),
      h("p", { class: "muted" }, decides
        ? tr`The broker decides whether it accepts the change. Some settings take effect only after a restart.`
        : tr`The broker applies the change immediately, and writes it to its broker.conf.`),
    ],
    act: () => post("/api/broker/settings", { address, name, from: value, value: entered.value }),
  });
  if (!done) return;
  note(tr`Changed ${name} of ${address} from ${orEmpty(value)} to ${orEmpty(entered.value)}.`);
  if (done.remark) note(done.remark, "bad");
  view.again();
}

const orEmpty = (value) => value || tr`empty`;

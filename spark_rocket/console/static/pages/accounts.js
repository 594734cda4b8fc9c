// Access control: accounts and white lists of ACL 1.0; users of ACL 2.0 are in users.js.
import { get, post, remove } from "../api.js";
import { confirmChanges, finished, HIDDEN, OWN, select, small, worded } from "../changes.js";
import { h } from "../dom.js";
import { moment } from "../format.js";
import { button, confirmName, dialog, field, head, note, section, Table, Troubles } from "../parts.js";
import { usersSection } from "./users.js";
import { sentences, tr, trNodes } from "../language.js";

const PERMISSIONS = ["DENY", "PUB", "SUB", "PUB|SUB"];
/** An administrator has all permissions without a name for them. */
const permissionText = (permission) => (permission === "all" ? tr`all` : permission);

export default function accounts(view) {
  view.title(tr`Accounts`);
  const troubles = new Troubles();
  const body = h("div");
  view.show(head(tr`Accounts`, { sub: tr`Access control of the brokers.` }), troubles.element, body);
  let shown = "";
  view.poll(async () => {
    const data = await get("/api/accounts", {}, { signal: view.gone.signal });
    troubles.show(Object.entries(data.failed));
    const now = JSON.stringify([data.off, data.files, data.users, data.own]);
    if (now !== shown) { // an unchanged page keeps the focus on its buttons
      shown = now;
      body.replaceChildren(
        data.off.length ? off(data.off) : "",
        ...data.files.map((file) => fileSection(view, file, data.own)), ...data.users.map((one) => usersSection(view, one, data.own)));
    }
    return data.refresh;
  });
}

const off = (brokers) => h("div", { class: "card" },
  h("h2", { class: "first" }, tr`Access control is off`),
  h("p", {}, tr`Every client that can reach ${brokers.join(", ")} may do everything.`),
  h("p", {}, trNodes`To enable it, set ${h("code", {}, "authenticationEnabled=true")} and ${h("code", {}, "authorizationEnabled=true")} (users, ACL 2.0) or ${h("code", {}, "aclEnable=true")} (plain_acl.yml, ACL 1.0) in broker.conf, and restart the broker. The steps are in the guide “Security”, section “Access control”: ${h("code", {}, "rocket help security")}.`));

function fileSection(view, file, own) {
  const brokers = file.brokers.map((one) => one.address);
  const names = file.brokers.map((one) => one.name).join(", ");
  const version = file.brokers[0];
  const about = h("p", { class: "muted" }, version.changed
    ? tr`plain_acl.yml (ACL 1.0) of ${names}: version ${version.version}, changed ${moment(version.changed)}.`
    : tr`plain_acl.yml (ACL 1.0) of ${names}: version ${version.version}.`);
  if (!file.accounts) return section(tr`Accounts of ${names}`, about, h("p", { class: "trouble info" }, tr`These brokers do not report their accounts. Check their plain_acl.yml.`));
  const admins = file.accounts.filter((one) => one.admin);
  const drop = async (account) => {
    const warning = [tr`The account's next requests are refused.`, account.name === own ? OWN : "", admins.length === 1 && account.admin ? tr`It is the last administrator: without one, accounts can be changed only in the brokers' files.` : ""];
    const done = await confirmName({
      title: tr`Delete account ${account.name}`, warning: sentences(...warning), name: account.name, action: tr`Delete`,
      act: (confirm) => remove("/api/account", { brokers, account: account.name, confirm, own: account.name === own }),
    });
    finished(view, done, tr`Deleted account ${account.name}.`);
  };
  const table = new Table({
    caption: tr`Accounts of ${names}`, key: (a) => a.name, empty: tr`No accounts.`,
    columns: [
      { key: "name", title: tr`Access key`, main: true, text: (a) => a.name, sub: (a) => (a.name === own ? tr`account of this console` : "") },
      { key: "admin", title: tr`Administrator`, text: (a) => (a.admin ? tr`yes` : tr`no`), tone: (a) => (a.admin ? "pill info" : "") },
      { key: "topics", title: tr`Topics`, text: (a) => a.topics.join(", ") || "–", sub: (a) => tr`others: ${permissionText(a.otherTopics)}` },
      { key: "groups", title: tr`Groups`, text: (a) => a.groups.join(", ") || "–", sub: (a) => tr`others: ${permissionText(a.otherGroups)}` },
      { key: "white", title: tr`Unsigned from`, text: (a) => a.white || "–" },
      { key: "actions", title: tr`Actions`, node: (a) => h("span", { class: "change" }, small(tr`Change`, tr`Change account ${a.name}`, () => edit(view, brokers, own, a)), small(tr`Delete`, tr`Delete account ${a.name}`, () => drop(a))) },
    ],
  });
  table.update(file.accounts);
  const white = h("p", {}, file.white.length ? tr`All permissions without a signature: ${file.white.join(", ")}.` : tr`No address has permissions without a signature.`,
    " ", button(tr`Change white list`, () => editWhite(view, brokers, file.white, own), "quiet small change"));
  return section(tr`Accounts of ${names}`, about, table.element, white, h("p", { class: "change" }, button(tr`New account`, () => edit(view, brokers, own, null))));
}

/** Enter an account's settings, confirm the changes, apply them. `known`: the account; null for a new one. */
async function edit(view, brokers, own, known) {
  const text = (value, more = {}) => h("input", { value, autocomplete: "off", spellcheck: "false", autocapitalize: "off", ...more });
  const lines = (values) => h("textarea", { rows: 3, spellcheck: "false", value: values.join("\n") });
  const permission = (value) => select([...new Set([value, ...PERMISSIONS])], value);
  const name = text(known?.name ?? "", { required: true });
  if (known) name.readOnly = true;
  const secret = h("input", { type: "password", autocomplete: "new-password", required: !known });
  const admin = h("input", { type: "checkbox", checked: known?.admin ?? false });
  const topics = lines(known?.topics ?? []);
  const groups = lines(known?.groups ?? []);
  const otherTopics = permission(known?.otherTopics ?? "DENY");
  const otherGroups = permission(known?.otherGroups ?? "DENY");
  const white = text(known?.white ?? "");
  const list = (area) => area.value.split(/[\n,]/).map((line) => line.trim()).filter(Boolean);
  const title = known ? tr`Change account ${known.name}` : tr`New account`;
  const given = await dialog({
    title, action: tr`Continue`,
    content: [
      field(tr`Access key`, name, { hint: known ? "" : tr`At least 7 characters.` }),
      field(tr`Secret key`, secret, { hint: known ? tr`Leave it empty to keep the present one.` : tr`At least 7 characters.` }),
      field(tr`Administrator`, admin, { hint: tr`May do everything, except what the lists below restrict.` }),
      field(tr`Topics`, topics, { hint: tr`One per line, like orders=PUB|SUB. PUB: send. SUB: consume.` }),
      field(tr`Groups`, groups, { hint: tr`One per line, like billing=SUB.` }),
      h("div", { class: "fields" }, field(tr`Other topics`, otherTopics), field(tr`Other groups`, otherGroups)),
      field(tr`Unsigned from`, white, { hint: tr`Addresses that need no signature for this account.` }),
    ],
    act: () => ({ secret: secret.value, admin: admin.checked, topics: list(topics), groups: list(groups), otherTopics: otherTopics.value, otherGroups: otherGroups.value, white: white.value.trim() }),
  });
  if (!given) return;
  const before = known ?? { admin: false, topics: [], groups: [], otherTopics: "DENY", otherGroups: "DENY", white: "" };
  const titles = { admin: tr`Administrator`, topics: tr`Topics`, groups: tr`Groups`, otherTopics: tr`Other topics`, otherGroups: tr`Other groups`, white: tr`Unsigned from` };
  const changed = Object.keys(titles).filter((key) => JSON.stringify(given[key]) !== JSON.stringify(before[key]));
  const rows = changed.map((key) => ({ what: titles[key], now: known ? worded(before[key]) : null, then: worded(given[key]) }));
  if (given.secret) rows.push({ what: tr`Secret key`, now: known ? HIDDEN : null, then: HIDDEN });
  if (!rows.length) { note(tr`No changes.`); return; }
  const account = name.value.trim();
  const body = { brokers, account, create: !known, own: account === own };
  if (known) body.from = known;
  for (const key of changed) body[key] = given[key];
  if (given.secret) body.secret = given.secret;
  finished(view, await confirmChanges({ title: known ? title : tr`New account ${account}`, brokers, rows, warning: account === own ? OWN : "", act: () => post("/api/account", body) }), known ? tr`Changed account ${account}.` : tr`Created account ${account}.`);
}

async function editWhite(view, brokers, addresses, own) {
  const area = h("textarea", { rows: 4, spellcheck: "false", value: addresses.join("\n") });
  const given = await dialog({
    title: tr`Change white list`, action: tr`Continue`,
    content: field(tr`Addresses`, area, { hint: tr`One per line: 10.0.0.7, 10.0.0.*, 10.0.0.{7,9} or 10.0.0.5-20. Clients at these addresses may do everything without a signature.` }),
    act: () => ({ addresses: area.value.split("\n").map((line) => line.trim()).filter(Boolean) }),
  });
  if (!given) return;
  finished(view, await confirmChanges({
    title: tr`Change white list`, brokers, rows: [{ what: tr`White list`, now: worded(addresses), then: worded(given.addresses) }],
    warning: own ? "" : tr`This console has no account: its access may depend on this list.`,
    act: () => post("/api/account/white-list", { brokers, from: addresses, addresses: given.addresses, own: !own }),
  }), tr`Changed the white list.`);
}

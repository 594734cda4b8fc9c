// Users of brokers with ACL 2.0 and their permissions: a section of the page of accounts.
import { post, remove } from "../api.js";
import { confirmChanges, finished, HIDDEN, OWN, select, small, worded } from "../changes.js";
import { h } from "../dom.js";
import { button, choice, confirmName, dialog, field, note, section, Table } from "../parts.js";
import { listed, sentences, tr } from "../language.js";

const ACTION_NAMES = { All: tr`All`, Pub: tr`Pub`, Sub: tr`Sub`, Create: tr`Create`, Update: tr`Update`, Delete: tr`Delete`, Get: tr`Get`, List: tr`List` };
const DECISIONS = { Allow: tr`Allow`, Deny: tr`Deny` };
const STATUSES = { enable: tr`enabled`, disable: tr`disabled` };

export function usersSection(view, found, own) {
  const brokers = found.brokers.map((one) => one.address);
  const names = found.brokers.map((one) => one.name).join(", ");
  const drop = async (user) => {
    const done = await confirmName({
      title: tr`Delete user ${user.name}`, warning: sentences(tr`The user is deleted with its permissions.`, user.name === own && OWN), name: user.name, action: tr`Delete`,
      act: (confirm) => remove("/api/user", { brokers, user: user.name, confirm, own: user.name === own }),
    });
    finished(view, done, tr`Deleted user ${user.name}.`);
  };
  const table = new Table({
    caption: tr`Users of ${names}`, key: (u) => u.name, empty: tr`No users.`,
    columns: [
      { key: "name", title: tr`User`, main: true, text: (u) => u.name, sub: (u) => (u.name === own ? tr`account of this console` : u.type ? "" : tr`not a user`) },
      { key: "type", title: tr`Type`, text: (u) => u.type ?? "–", tone: (u) => (u.type === "Super" ? "pill info" : "") },
      { key: "status", title: tr`Status`, text: (u) => STATUSES[u.status] ?? u.status ?? "–", tone: (u) => (u.status === "disable" ? "pill warn" : u.status ? "pill good" : "") },
      { key: "permissions", title: tr`Permissions`, node: (u) => permissions(view, brokers, own, u) },
      { key: "actions", title: tr`Actions`, node: (u) => h("span", { class: "change" }, u.type ? [
        small(tr`Change`, tr`Change user ${u.name}`, () => edit(view, brokers, own, u)), small(tr`Add permission`, tr`Add permission of ${u.name}`, () => permit(view, brokers, own, u, null)), small(tr`Delete`, tr`Delete user ${u.name}`, () => drop(u)),
      ] : null) },
    ],
  });
  table.update(found.users);
  return section(tr`Users of ${names}`, h("p", { class: "muted" }, tr`ACL 2.0. Users of type Super may do everything; others need permissions.`),
    table.element, h("p", { class: "change" }, button(tr`New user`, () => edit(view, brokers, own, null))));
}

const described = (p) => [
  tr`${DECISIONS[p.decision] ?? p.decision} ${listed(p.actions.map((action) => ACTION_NAMES[action] ?? action))} on ${p.resource}`,
  p.sourceIps.length ? tr`from ${p.sourceIps.join(", ")}` : "", p.policyType === "Default" ? tr`(default)` : "",
].filter(Boolean).join(" ");

function permissions(view, brokers, own, user) {
  if (!user.permissions.length) return h("span", {}, user.type === "Super" ? tr`everything` : "–");
  return h("ul", { class: "plain" }, user.permissions.map((p) => h("li", {}, described(p), user.type ? h("span", { class: "change" },
    " ", small(tr`Change`, tr`Change permission of ${user.name} on ${p.resource}`, () => permit(view, brokers, own, user, p)), small(tr`Delete`, tr`Delete permission of ${user.name} on ${p.resource}`, () => forbid(view, brokers, own, user, p))) : null)));
}

/** Enter a user's settings, confirm the changes, apply them. `known`: the user; null for a new one. */
async function edit(view, brokers, own, known) {
  const name = h("input", { value: known?.name ?? "", required: true, autocomplete: "off", spellcheck: "false", autocapitalize: "off" });
  if (known) name.readOnly = true;
  const password = h("input", { type: "password", autocomplete: "new-password", required: !known });
  const type = select(["Normal", "Super"], known?.type ?? "Normal");
  const status = select(["enable", "disable"], known?.status ?? "enable");
  const given = await dialog({
    title: known ? tr`Change user ${known.name}` : tr`New user`, action: tr`Continue`,
    content: [
      field(tr`Name`, name), field(tr`Password`, password, { hint: known ? tr`Leave it empty to keep the present one.` : "" }),
      field(tr`Type`, type, { hint: tr`Super may do everything.` }), known ? field(tr`Status`, status) : null,
    ],
    act: () => ({ password: password.value, type: type.value, status: status.value }),
  });
  if (!given) return;
  const user = name.value.trim();
  const body = { brokers, user, create: !known, own: user === own };
  if (known) body.from = known;
  const rows = [];
  const add = (key, what, now, then) => { body[key] = given[key]; rows.push({ what, now, then }); };
  if (given.type !== known?.type) add("type", tr`Type`, known ? known.type ?? "–" : null, given.type);
  if (known && given.status !== known.status) add("status", tr`Status`, STATUSES[known.status] ?? "–", STATUSES[given.status]);
  if (given.password) add("password", tr`Password`, known ? HIDDEN : null, HIDDEN);
  if (!rows.length) { note(tr`No changes.`); return; }
  finished(view, await confirmChanges({ title: known ? tr`Change user ${user}` : tr`New user ${user}`, brokers, rows, warning: user === own ? OWN : "", act: () => post("/api/user", body) }), known ? tr`Changed user ${user}.` : tr`Created user ${user}.`);
}

/** Enter a permission, confirm it, apply it. `known`: the permission on this resource; null for another one. */
async function permit(view, brokers, own, user, known) {
  const resource = h("input", { value: known?.resource ?? "Topic:", required: true, autocomplete: "off", spellcheck: "false", autocapitalize: "off" });
  if (known) resource.readOnly = true;
  let decision = known?.decision ?? "Allow";
  const boxes = Object.keys(ACTION_NAMES).map((action) => [action, h("input", { type: "checkbox", id: `action-${action}`, checked: known?.actions.includes(action) ?? false })]);
  const addresses = h("input", { value: known?.sourceIps.join(", ") ?? "", autocomplete: "off", spellcheck: "false" });
  const given = await dialog({
    title: tr`Permission of ${user.name}`, action: tr`Continue`,
    content: [
      field(tr`Resource`, resource, { hint: tr`Topic:orders, Group:billing, Topic:order* for all with this prefix, or * for everything.` }),
      choice(tr`Decision`, "decision", Object.entries(DECISIONS), decision, (value) => { decision = value; }),
      h("fieldset", { class: "checks" }, h("legend", { class: "muted" }, tr`Actions`), boxes.map(([action, box]) => h("span", { class: "check" }, box, h("label", { for: box.id }, ACTION_NAMES[action])))),
      field(tr`From addresses`, addresses, { hint: tr`Separated by commas, like 10.0.0.0/8. Empty: from all.` }),
    ],
    act: () => ({ actions: boxes.filter(([, box]) => box.checked).map(([action]) => action), sourceIps: addresses.value.split(",").map((one) => one.trim()).filter(Boolean) }),
  });
  if (!given) return;
  const next = { decision, ...given, resource: resource.value.trim(), policyType: known?.policyType ?? "Custom" };
  const present = known ?? user.permissions.find((p) => p.resource === next.resource && p.policyType === next.policyType);
  const rows = [{ what: tr`User`, now: null, then: user.name }, { what: tr`Permission`, now: present ? described(present) : null, then: worded(described(next)) }];
  finished(view, await confirmChanges({
    title: tr`Permission of ${user.name}`, brokers, rows, warning: user.name === own ? OWN : "",
    act: () => post("/api/permission", { brokers, user: user.name, from: user, own: user.name === own, ...next }),
  }), tr`Changed the permission of ${user.name} on ${next.resource}.`);
}

async function forbid(view, brokers, own, user, p) {
  const done = await dialog({
    title: tr`Delete a permission of ${user.name}`, action: tr`Delete`, danger: true,
    content: [h("p", {}, `${described(p)}.`), user.name === own ? h("p", { class: "trouble warn" }, OWN) : null],
    act: () => remove("/api/permission", { brokers, user: user.name, from: user, resource: p.resource, policyType: p.policyType, own: user.name === own }),
  });
  finished(view, done, tr`Deleted the permission of ${user.name} on ${p.resource}.`);
}

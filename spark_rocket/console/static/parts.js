// Components of pages: heads, tiles, tables, pagers, errors, notes, dialogs, fields.
import { h, put } from "./dom.js";
import { count, moment, NONE } from "./format.js";
import { errorTitle, tr } from "./language.js";

export function head(title, { sub = null, actions = [], back = null } = {}) {
  return h("div", { class: "head" },
    h("div", { class: "titles" },
      back && h("a", { class: "back", href: back[0] }, `‹ ${back[1]}`),
      h("h1", { tabindex: "-1" }, title),
      sub && h("p", { class: "muted" }, sub)),
    actions.length ? h("div", { class: "actions" }, actions) : null);
}

export const button = (text, onclick, kind = "") => h("button", { type: "button", class: kind, onclick }, text);
export const linkButton = (text, href, kind = "") => h("a", { class: `button ${kind}`, href }, text);

let sections = 0;
export function section(title, ...children) {
  sections += 1;
  const id = `s-${sections}`;
  return h("section", { "aria-labelledby": id }, h("h2", { id }, title), children);
}

/** Numbers side by side: tiles.set("lag", "12", {tone, sub}). */
export class Tiles {
  constructor(names) {
    this.tiles = new Map();
    this.element = h("dl", { class: "tiles" });
    for (const [key, title, href] of names) {
      const value = h("dd", {}, NONE);
      const sub = h("dd", { class: "sub" });
      const inside = href ? h("a", { href }, title) : title;
      this.tiles.set(key, { value, sub });
      this.element.append(h("div", { class: "tile" }, h("dt", {}, inside), value, sub));
    }
  }

  set(key, text, { tone = "", sub = "" } = {}) {
    const tile = this.tiles.get(key);
    put(tile.value, text);
    tile.value.className = tone;
    put(tile.sub, sub);
  }
}

/**
 * A table that reuses the elements of its rows, so that updates preserve focus and selection.
 * columns: {key, title, text(row), href?(row), tone?(row), sub?(row), hint?(row), node?(row), num?, sort?, main?}
 */
export class Table {
  constructor({ caption, columns, key, empty, sort = null, onSort = null }) {
    this.columns = columns;
    this.key = key;
    this.rows = new Map();
    this.sort = sort;
    this.heads = columns.map((column) => {
      const cell = h("th", { scope: "col", class: column.num ? "num" : "" });
      if (onSort && column.sort !== false) {
        cell.append(h("button", { type: "button", class: "sort", onclick: () => onSort(column.key, this.sort) }, column.title));
      } else cell.append(column.title);
      return cell;
    });
    this.body = h("tbody");
    this.empty = h("div", { class: "empty", hidden: true }, empty ?? tr`No entries.`);
    this.table = h("table", {}, h("caption", { class: "hidden" }, caption), h("thead", {}, h("tr", {}, this.heads)), this.body);
    this.element = h("div", { class: "table" }, this.table, this.empty);
  }

  showSort(key, desc) {
    this.sort = { key, desc };
    this.columns.forEach((column, i) => {
      if (column.key === key) this.heads[i].setAttribute("aria-sort", desc ? "descending" : "ascending");
      else this.heads[i].removeAttribute("aria-sort");
    });
  }

  update(rows) {
    const seen = new Set();
    let before = null;
    for (const row of rows) {
      const key = this.key(row);
      seen.add(key);
      let known = this.rows.get(key);
      if (!known) { known = this.make(row); this.rows.set(key, known); }
      this.fill(known, row);
      const place = before ? before.nextSibling : this.body.firstChild;
      if (place !== known.line) this.body.insertBefore(known.line, place);
      before = known.line;
    }
    for (const [key, known] of this.rows) {
      if (!seen.has(key)) { known.line.remove(); this.rows.delete(key); }
    }
    this.empty.hidden = rows.length > 0;
    this.table.hidden = rows.length === 0;
  }

  make(row) {
    const cells = this.columns.map((column) => {
      const cell = h(column.main ? "th" : "td", { class: [column.num ? "num" : "", column.main ? "main" : ""].join(" ").trim(), "data-label": column.title, "data-key": column.key });
      if (column.main) cell.setAttribute("scope", "row");
      if (column.node) { cell.append(column.node(row)); return { cell }; }
      const text = h(column.href ? "a" : "span"); // an "a" without an address is text: a later row may have one
      cell.append(text);
      const sub = column.sub ? h("span", { class: "sub" }) : null;
      if (sub) cell.append(sub);
      return { cell, text, sub };
    });
    return { line: h("tr", {}, cells.map((c) => c.cell)), cells };
  }

  fill(known, row) {
    this.columns.forEach((column, i) => {
      const { text, sub, cell } = known.cells[i];
      if (!text) { column.refresh?.(row, cell); return; }
      put(text, column.text(row));
      if (column.href) {
        const href = column.href(row);
        if (!href) text.removeAttribute("href");
        else if (text.getAttribute("href") !== href) text.setAttribute("href", href);
      }
      if (sub) put(sub, column.sub(row));
      const tone = column.tone?.(row) ?? "";
      if (text.className !== tone) text.className = tone;
      if (column.hint) { const hint = column.hint(row) ?? ""; if (text.title !== hint) text.title = hint; }
    });
    known.row = row;
  }
}

/** `show(data, what)`: what(number) is the text for so many entries. */
export function pager(onPage) {
  const text = h("span", { class: "muted", "aria-live": "polite" });
  const back = button(tr`‹ Previous`, () => onPage(state.page - 1), "quiet");
  const on = button(tr`Next ›`, () => onPage(state.page + 1), "quiet");
  const state = { page: 0 };
  const element = h("div", { class: "pager" }, text, h("span", {}, back, on));
  return {
    element,
    show({ page, pages, found }, what) {
      state.page = page;
      put(text, pages > 1 ? tr`${what(count(found))}, page ${page + 1} of ${pages}` : what(count(found)));
      back.disabled = page === 0;
      on.disabled = page >= pages - 1;
      back.hidden = on.hidden = pages === 1;
    },
  };
}

/** An error: code, message, remedy. */
export function trouble({ code, text, remedy, response }, { who = "", tone = "bad" } = {}) {
  return h("div", { class: `trouble ${tone}`, role: "alert" },
    h("p", {}, who && h("strong", {}, `${who}: `), errorTitle(code) && `${errorTitle(code)} `, text), remedy && h("p", { class: "remedy" }, remedy), h("code", {}, response === null || response === undefined ? code : `${code} · ${response}`));
}

/** A list of current errors; unchanged lists are not announced again. */
export class Troubles {
  constructor() {
    this.element = h("div", { class: "troubles" });
    this.shown = "";
  }

  show(list) {
    const shown = JSON.stringify(list);
    if (shown === this.shown) return;
    this.shown = shown;
    this.element.replaceChildren(...list.map(([who, one]) => trouble(one, { who })));
  }
}

export function note(text, tone = "good") {
  const place = document.getElementById("notes");
  const element = h("div", { class: `note ${tone}` }, h("span", {}, text), button("×", () => element.remove(), "quiet"));
  element.lastChild.setAttribute("aria-label", tr`Close`);
  place.append(element);
  if (place.children.length > 4) place.firstChild.remove();
  setTimeout(() => element.remove(), 9000);
}

let fields = 0;
export function field(title, input, { hint = "" } = {}) {
  fields += 1;
  const id = `f-${fields}`;
  input.id = id;
  const note = hint ? h("small", { id: `${id}-h`, class: "muted" }, hint) : null;
  if (note) input.setAttribute("aria-describedby", `${id}-h`);
  return h("div", { class: "field" }, h("label", { for: id }, title), input, note);
}

/** A field for a time, read by `timeOf`. */
export const timeInput = (value = "") => h("input", { value, autocomplete: "off", spellcheck: "false" });
export const timeHint = () => tr`Such as ${moment(Date.now())}, or -2h.`;

export function choice(title, name, options, value, onchange) {
  return h("fieldset", { class: "choice" }, h("legend", { class: "hidden" }, title), options.map(([key, text]) => {
    fields += 1;
    const id = `f-${fields}`;
    return [h("input", { type: "radio", name, id, value: key, checked: key === value, onchange: () => onchange(key) }), h("label", { for: id }, text)];
  }));
}

export function names(list) {
  fields += 1;
  return h("datalist", { id: `f-${fields}` }, list.map((name) => h("option", { value: name })));
}

/**
 * Show a dialog until its action succeeds or is canceled. If `act` fails, the dialog shows the error and stays open.
 * Resolves to the result of `act`, or null.
 */
export function dialog({ title, content, action, danger = false, act }) {
  return new Promise((resolve) => {
    const troubles = h("div");
    const go = h("button", { type: "submit", class: danger ? "danger" : "primary" }, action);
    const form = h("form", { method: "dialog" },
      h("h2", {}, title), content, troubles,
      h("div", { class: "actions" }, button(tr`Cancel`, () => element.close(), "quiet"), go));
    const element = h("dialog", { "aria-label": title }, form);
    let given = null;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      go.disabled = true;
      troubles.replaceChildren();
      try {
        given = (await act()) ?? {};
        element.close();
      } catch (error) {
        troubles.replaceChildren(trouble(asTrouble(error)));
      } finally { go.disabled = false; }
    });
    element.addEventListener("close", () => { element.remove(); resolve(given); });
    document.body.append(element);
    element.showModal();
  });
}

/** Show a dialog in which the user must enter the name. */
export function confirmName({ title, warning, name, action, act }) {
  const input = h("input", { autocomplete: "off", spellcheck: "false", autocapitalize: "off", required: true });
  return dialog({
    title, action, danger: true,
    content: [h("p", {}, warning), field(tr`Enter ${name} to confirm`, input)],
    act: () => act(input.value.trim()),
  });
}

export function asTrouble(error) {
  return error.code ? error : { code: "PAGE_FAULT", text: tr`Internal error of the page: ${error.message}`, remedy: tr`Reload it.` };
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value ?? NONE)]));
}

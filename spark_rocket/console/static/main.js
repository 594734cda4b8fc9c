// The frame: routing, page lifecycle, session, theme.
import { onLoggedOut, openSession, post, session } from "./api.js";
import { h, put } from "./dom.js";
import { zone, zoneName } from "./format.js";
import { asTrouble, note, trouble } from "./parts.js";
import { language, tr } from "./language.js";

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const live = document.getElementById("live");
const zoneLine = document.getElementById("zone");

const PAGES = [
  [/^\/$/, "overview"],
  [/^\/broker$/, "broker"],
  [/^\/topics$/, "topics"],
  [/^\/topics\/([^/]+)$/, "topic"],
  [/^\/groups$/, "groups"],
  [/^\/groups\/([^/]+)$/, "group"],
  [/^\/groups\/([^/]+)\/member$/, "member"],
  [/^\/producers$/, "producers"],
  [/^\/messages$/, "messages"],
  [/^\/message$/, "message"],
  [/^\/send$/, "send"],
  [/^\/dead-letters$/, "dead"],
  [/^\/dead-letters\/([^/]+)$/, "dead-group"],
  [/^\/dead-letters\/topic\/([^/]+)$/, "dead-topic"],
  [/^\/accounts$/, "accounts"],
  [/^\/console$/, "health"],
];

let view = null;

/** Translate the messages of index.html: the messages of attributes, or else an element's own. */
function translatePage() {
  const messages = {
    accounts: tr`Accounts`, dead: tr`Dead letters`, groups: tr`Groups`, health: tr`Health of the console`, loading: tr`Loading …`, logout: tr`Log out`,
    messages: tr`Messages`, overview: tr`Overview`, pages: tr`Pages`, producers: tr`Producers`, send: tr`Send`, skip: tr`Skip to content`,
    theme: tr`Switch between light and dark theme`, topics: tr`Topics`,
  };
  document.documentElement.lang = language;
  for (const element of document.querySelectorAll("[data-message]")) {
    const message = messages[element.dataset.message];
    const attributes = ["aria-label", "title"].filter((name) => element.hasAttribute(name));
    for (const name of attributes) element.setAttribute(name, message);
    if (!attributes.length) put(element, message);
  }
}
translatePage();

/** A displayed page: its elements, its query, its polling. */
class View {
  constructor(argument) {
    this.argument = argument;
    this.query = new URLSearchParams(location.search);
    this.root = h("div", { class: "page" });
    this.alerts = h("div");
    this.gone = new AbortController();
    this.timer = 0;
    this.again = () => {};
    this.came = false;
    this.stale = this.unknown = false;
  }

  get isOpen() { return !this.gone.signal.aborted; }

  title(text) { document.title = tr`${text} · rocket console`; }

  /** Note whether the cluster is unavailable: then the data is stale or missing. */
  cluster(data) {
    this.stale = Boolean(data.trouble);
    this.unknown = this.stale && !data.known;
  }

  show(...children) { this.root.replaceChildren(this.alerts, ...children.filter(Boolean)); }

  go(path) { go(path); }

  /** Store the state of the page in the URL, so that it can be bookmarked and shared. */
  remember(values) {
    for (const [name, value] of Object.entries(values)) {
      if (value === null || value === undefined || value === "" || value === false) this.query.delete(name);
      else this.query.set(name, String(value));
    }
    const text = this.query.toString();
    history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
  }

  /** Call `load` now and again after the returned number of ms, while the page is visible. */
  poll(load) {
    let running = false;
    let wanted = false;
    const turn = async () => {
      clearTimeout(this.timer);
      if (running) { wanted = true; return; }
      running = true;
      let wait = 3000;
      try {
        wait = (await load()) ?? 5000;
        this.alerts.replaceChildren();
        this.alerts.shown = "";
        this.root.classList.toggle("nothing", this.unknown);
        this.came = !this.unknown;
        setLive(!this.stale);
      } catch (error) {
        if (error.name === "AbortError") return;
        this.fail(error);
        this.root.classList.toggle("nothing", !this.came); // empty tables would be misleading
        setLive(false);
      } finally { running = false; }
      if (!this.isOpen) return;
      if (wanted) { wanted = false; turn(); return; }
      this.timer = setTimeout(() => { if (!document.hidden) turn(); }, wait);
    };
    this.again = turn;
    return turn();
  }

  fail(error) {
    const found = asTrouble(error);
    if (!error.code) console.error(error);
    if (this.alerts.shown === found.text) return;
    this.alerts.shown = found.text;
    this.alerts.replaceChildren(trouble(found));
  }

  /** Run an action and show its error. */
  async try(action) {
    try { return await action(); } catch (error) { this.fail(error); this.alerts.scrollIntoView({ block: "nearest" }); return null; }
  }

  close() {
    clearTimeout(this.timer);
    this.gone.abort();
  }
}

function setLive(is) {
  live.classList.toggle("away", !is);
  put(live.lastElementChild, is ? tr`live` : tr`stale`);
  live.setAttribute("aria-label", is ? tr`Live: show the console's health` : tr`Stale: the last request failed, or the cluster is unavailable`);
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

async function open(path, { focus = true } = {}) {
  view?.close();
  const pathname = path.split("?")[0];
  const found = PAGES.map(([pattern, name]) => [pattern.exec(pathname), name]).find(([match]) => match);
  const mine = view = new View(found?.[0][1] ? decoded(found[0][1]) : null);
  for (const link of nav.children) {
    const here = link.getAttribute("href");
    const is = here === "/" ? pathname === "/" : pathname.startsWith(here) || (here === "/messages" && pathname === "/message");
    if (is) { link.setAttribute("aria-current", "page"); nav.scrollLeft = link.offsetLeft - nav.clientWidth / 3; } else link.removeAttribute("aria-current");
  }
  if (!found) {
    mine.title(tr`Page not found`);
    mine.show(h("h1", { tabindex: "-1" }, tr`Page not found`), h("p", {}, tr`This page does not exist.`, " ", h("a", { href: "/" }, tr`Go to the overview.`)));
    main.replaceChildren(mine.root);
    return;
  }
  try {
    const page = await import(`./pages/${found[1]}.js`);
    if (view !== mine) return;
    page.default(mine);
    main.replaceChildren(mine.root);
    if (focus) { window.scrollTo(0, 0); main.querySelector("h1")?.focus({ preventScroll: true }); }
  } catch (error) {
    main.replaceChildren(trouble(asTrouble(error)));
  }
}

export function go(path) {
  history.pushState(null, "", path);
  open(path);
}

document.addEventListener("click", (event) => {
  if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const link = event.target.closest?.("a[href]");
  if (!link || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
  if (link.classList.contains("skip")) { event.preventDefault(); main.focus(); return; }
  if (link.pathname.startsWith("/api/")) return;
  event.preventDefault();
  go(link.pathname + link.search);
});
window.addEventListener("popstate", () => open(location.pathname + location.search));
document.addEventListener("visibilitychange", () => { if (!document.hidden) view?.again(); });

document.getElementById("theme").addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try { localStorage.setItem("rocket-theme", next); } catch { /* then only for this page */ }
});

const logout = document.getElementById("logout");
logout.addEventListener("click", async () => {
  try { await post("/api/logout"); } catch { /* the session ends either way */ }
  location.assign("/");
});

async function showLogin() {
  view?.close();
  nav.hidden = logout.hidden = live.hidden = zoneLine.hidden = true;
  const page = await import("./pages/login.js");
  page.default(main, begin);
}
onLoggedOut(showLogin);

async function begin() {
  try { await openSession(); } catch (error) {
    main.replaceChildren(trouble(asTrouble(error)));
    setTimeout(begin, 3000);
    return;
  }
  if (session.login && !session.user) { showLogin(); return; }
  nav.hidden = live.hidden = false;
  put(zoneLine, tr`Times are in this browser's time zone: ${zoneName() === "UTC" ? "UTC" : `${zone()}, ${zoneName()}`}.`);
  zoneLine.hidden = false;
  setLive(true);
  logout.hidden = !session.login;
  document.body.classList.toggle("read-only", session.readOnly);
  open(location.pathname + location.search, { focus: false });
}
begin();
export { note };

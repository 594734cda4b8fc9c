// Time series charts as SVG. The pointer or the arrow keys select a moment.
import { h, put, s } from "./dom.js";
import { moment, zone } from "./format.js";
import { tr } from "./language.js";

const HEIGHT = 190;
const LEFT = 56;
const BOTTOM = 22;
const TOP = 8;
const RIGHT = 10;

export class Chart {
  /** lines: [[column, title]]; format(value) -> text */
  constructor({ title, format, area = false }) {
    this.title = title;
    this.format = format;
    this.area = area;
    this.lines = [];
    this.data = { times: [], columns: {} };
    this.at = null;
    this.svg = s("svg", { role: "img", tabindex: "0", height: HEIGHT, class: "chart" });
    this.legend = h("ul", { class: "legend" });
    this.tip = h("p", { class: "tip muted", "aria-live": "polite" });
    this.element = h("figure", {}, this.svg, h("figcaption", {}, this.legend, this.tip));
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.select(null));
    this.svg.addEventListener("blur", () => this.select(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.width = 600;
    new ResizeObserver(([entry]) => {
      const width = Math.round(entry.contentRect.width);
      if (width && width !== this.width) { this.width = width; this.draw(); }
    }).observe(this.element);
  }

  update(data, lines) {
    this.data = data;
    this.lines = lines.filter(([column]) => column in data.columns);
    this.draw();
  }

  draw() {
    const { times, columns } = this.data;
    const width = this.width;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.setAttribute("width", width);
    if (times.length < 2 || !this.lines.length) {
      const text = s("text", { x: width / 2, y: HEIGHT / 2, class: "axis", "text-anchor": "middle" }, tr`Waiting for a second sample …`);
      this.svg.replaceChildren(text);
      this.legend.replaceChildren();
      put(this.tip, "");
      this.svg.setAttribute("aria-label", tr`${this.title}: no samples yet`);
      return;
    }
    const first = times[0];
    const last = times[times.length - 1];
    let most = 0;
    for (const [column] of this.lines) for (const value of columns[column]) if (value > most) most = value;
    const top = nice(most);
    this.x = (t) => LEFT + ((t - first) / (last - first || 1)) * (width - LEFT - RIGHT);
    this.y = (v) => TOP + (1 - v / top) * (HEIGHT - TOP - BOTTOM);
    const parts = [];
    let shown = null;
    for (const part of [0, 0.5, 1]) {
      const y = this.y(top * part);
      const text = this.format(top * part);
      if (part === 0.5 && (text === this.format(top) || text === shown)) continue; // half a message
      shown = text;
      parts.push(s("line", { x1: LEFT, x2: width - RIGHT, y1: y, y2: y, class: "grid" }));
      parts.push(s("text", { x: LEFT - 8, y: y + 4, class: "axis", "text-anchor": "end" }, text));
    }
    const clock = (t) => moment(t).slice(11, last - first > 600000 ? 16 : 19);
    parts.push(s("text", { x: LEFT, y: HEIGHT - 5, class: "axis" }, clock(first)));
    parts.push(s("text", { x: width - RIGHT, y: HEIGHT - 5, class: "axis", "text-anchor": "end" }, `${clock(last)}${zone(last)}`));
    this.lines.forEach(([column], i) => {
      const path = this.path(columns[column]);
      if (this.area && i === 0 && path) {
        const base = this.y(0);
        const area = path.split("M").slice(1).map((part) => {
          const ends = part.split("L").map((point) => point.split(",")[0]);
          return `M${ends[0]},${base}L${part}L${ends.at(-1)},${base}Z`;
        });
        parts.push(s("path", { d: area.join(""), class: "area" }));
      }
      parts.push(s("path", { d: path, class: `line c${i % 9}` }));
    });
    this.cursor = s("line", { y1: TOP, y2: HEIGHT - BOTTOM, class: "cursor", visibility: "hidden" });
    parts.push(this.cursor);
    this.svg.replaceChildren(...parts);
    this.items = this.lines.map(([column, title], i) => {
      const value = h("b", {}, "");
      return { column, value, element: h("li", {}, h("i", { class: `c${i % 9}`, "aria-hidden": "true" }), h("span", {}, title), value) };
    });
    this.legend.replaceChildren(...this.items.map((item) => item.element));
    this.select(this.at);
    const now = this.lines.map(([column, title]) => `${title} ${this.text(columns[column].at(-1))}`).join(", ");
    this.svg.setAttribute("aria-label", tr`${this.title} from ${clock(first)} to ${clock(last)}${zone(last)}; now ${now}. Use the arrow keys to select a moment.`);
  }

  text(value) {
    return value === null || value === undefined ? "–" : this.format(value);
  }

  path(values) {
    let path = "";
    let pen = false;
    values.forEach((value, i) => {
      if (value === null) { pen = false; return; }
      path += `${pen ? "L" : "M"}${this.x(this.data.times[i]).toFixed(1)},${this.y(value).toFixed(1)}`;
      pen = true;
    });
    return path;
  }

  point(event) {
    const { times } = this.data;
    if (times.length < 2) return;
    const box = this.svg.getBoundingClientRect();
    const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    const wanted = times[0] + share * (times.at(-1) - times[0]);
    let best = 0;
    times.forEach((t, i) => { if (Math.abs(t - wanted) < Math.abs(times[best] - wanted)) best = i; });
    this.select(times[best]);
  }

  key(event) {
    const { times } = this.data;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || times.length < 2) return;
    event.preventDefault();
    const now = this.at === null ? times.length - 1 : times.indexOf(this.at) + step;
    this.select(times[Math.max(0, Math.min(times.length - 1, now))]);
  }

  select(time) {
    const { times, columns } = this.data;
    const i = time === null ? -1 : times.indexOf(time);
    this.at = i < 0 ? null : time;
    if (!this.cursor) return;
    this.cursor.setAttribute("visibility", i < 0 ? "hidden" : "visible");
    if (i >= 0) { this.cursor.setAttribute("x1", this.x(time)); this.cursor.setAttribute("x2", this.x(time)); }
    for (const item of this.items ?? []) put(item.value, this.text(columns[item.column].at(i)));
    put(this.tip, i < 0 ? "" : moment(time));
  }
}

function nice(most) {
  if (most <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  for (const step of [1, 2, 4, 6, 8, 10]) if (step * power >= most) return Math.max(step * power, 1);
  return most;
}

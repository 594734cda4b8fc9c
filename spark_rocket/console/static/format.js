// Readable numbers, sizes and times. Times have the same form in all languages.
import { locale, tr } from "./language.js";

const whole = new Intl.NumberFormat(locale, { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat(locale, { maximumFractionDigits: 1 });
const short = new Intl.NumberFormat(locale, { notation: "compact", maximumFractionDigits: 1 });

export const NONE = "–";
const none = (value) => value === null || value === undefined;

export const count = (value) => (none(value) ? NONE : whole.format(value));
export const brief = (value) => (none(value) ? NONE : value < 100000 ? whole.format(value) : short.format(value));
export const millis = (value) => (none(value) ? NONE : tr`${one.format(value)} ms`);
export const rate = (value) => (none(value) ? NONE : tr`${value > 0 && value < 100 ? one.format(value) : whole.format(value)}/s`);

export function size(bytes) {
  if (none(bytes)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  let left = bytes;
  while (left >= 1024 && power < units.length - 1) { left /= 1024; power += 1; }
  return `${power ? one.format(left) : whole.format(left)} ${units[power]}`;
}

export const percent = (ratio) => (none(ratio) ? NONE : tr`${whole.format(ratio * 100)} %`);

const two = (number) => String(number).padStart(2, "0");

export function moment(ms, { millis = false } = {}) {
  if (!ms) return NONE;
  const d = new Date(ms);
  if (Number.isNaN(d.getTime())) return String(ms);
  const day = `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())}`;
  const time = `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
  return `${day} ${time}${millis ? `.${String(d.getMilliseconds()).padStart(3, "0")}` : ""}`;
}

/** The time zone of `moment`: UTC, or UTC+01:00. */
export function zone(ms = Date.now()) {
  const minutes = -new Date(ms).getTimezoneOffset();
  const off = Math.abs(minutes);
  return minutes ? `UTC${minutes < 0 ? "−" : "+"}${two(Math.floor(off / 60))}:${two(off % 60)}` : "UTC";
}

export function duration(seconds) {
  if (none(seconds)) return NONE;
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return tr`${s} s`;
  if (s < 3600) return tr`${Math.floor(s / 60)} min`;
  if (s < 86400) return tr`${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return tr`${whole.format(Math.floor(s / 86400))} d ${Math.floor((s % 86400) / 3600)} h`;
}

export const ago = (ms) => (ms ? tr`${duration((Date.now() - ms) / 1000)} ago` : NONE);

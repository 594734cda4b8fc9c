// Readable numbers, sizes and times. Times have the form of `rocket` in all languages, with their zone.
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

const LAST = Date.UTC(9999, 11, 31); // later times are shown as numbers
const minutesOf = (ms) => -new Date(ms).getTimezoneOffset();

/** A time of the browser's zone, such as 2026-01-31T12:00:00+01:00. Every field and command that takes a time reads it. */
export function moment(ms, { millis = false } = {}) {
  if (!ms) return NONE;
  if (!(ms > 0 && ms < LAST)) return String(ms);
  return new Date(ms + minutesOf(ms) * 60_000).toISOString().slice(0, millis ? 23 : 19) + zone(ms);
}

/** The zone of `moment`: Z, or +01:00. */
export function zone(ms = Date.now()) {
  const minutes = minutesOf(ms);
  const off = Math.abs(minutes);
  return minutes ? `${minutes < 0 ? "-" : "+"}${two(Math.floor(off / 60))}:${two(off % 60)}` : "Z";
}

/** The name of the browser's time zone. */
export const zoneName = () => Intl.DateTimeFormat().resolvedOptions().timeZone;

export function duration(seconds) {
  if (none(seconds)) return NONE;
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return tr`${s} s`;
  if (s < 3600) return tr`${Math.floor(s / 60)} min`;
  if (s < 86400) return tr`${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return tr`${whole.format(Math.floor(s / 86400))} d ${Math.floor((s % 86400) / 3600)} h`;
}

export const ago = (ms) => (ms ? tr`${duration((Date.now() - ms) / 1000)} ago` : NONE);

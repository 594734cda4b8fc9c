// The messages of the console. The scripts have them in English, tagged with tr; here is their Chinese translation.
// The language is the first of the browser's languages that the console has. Tests compare this table with the scripts.
import { CHINESE, CHINESE_ERRORS, CHINESE_REASONS } from "./chinese.js";

const LANGUAGES = ["en", "zh"];
export const language = navigator.languages.map((tag) => tag.split("-")[0].toLowerCase()).find((tag) => LANGUAGES.includes(tag)) ?? "en";
export const locale = language === "zh" ? "zh-CN" : "en";

/** The message as strings and values, in the order of the language. The key of tr`${a} of ${b}` is "{0} of {1}". */
function pieces(strings, values) {
  const key = strings.reduce((all, part, i) => `${all}{${i - 1}}${part}`);
  const text = language === "zh" ? CHINESE[key] ?? key : key;
  return text.split(/\{(\d)\}/).map((piece, i) => (i % 2 ? values[piece] : piece));
}

export const tr = (strings, ...values) => pieces(strings, values).join("");
/** The same for values that are elements: a list for h(). */
export const trNodes = (strings, ...values) => pieces(strings, values);

/** Sentences one after the other, without the empty ones. Chinese has no blanks between them. */
export const sentences = (...parts) => parts.filter(Boolean).join(language === "zh" ? "" : " ");

/** Translated words as a list. Names are separated by commas in both languages. */
export const listed = (words) => words.join(language === "zh" ? "、" : ", ");

/** What the code of an error means, or an empty string in English, the language of its message. */
export const errorTitle = (code) => (language === "zh" ? CHINESE_ERRORS[code] ?? "" : "");

const plain = (text) => text.replace(/[.*+?^$()|[\]\\]/g, "\\$&");
const REASONS = language === "zh" ? Object.entries(CHINESE_REASONS).map(([english, chinese]) => [new RegExp(`^${plain(english).replace(/\{\d\}/g, "(.+?)")}$`), chinese]) : [];

/** The reason of a bad record. Reasons that the table lacks, for example of libraries, stay English. */
export function reasonText(text) {
  for (const [pattern, chinese] of REASONS) {
    const found = pattern.exec(text ?? "");
    if (found) return chinese.replace(/\{(\d)\}/g, (_, at) => reasonText(found[Number(at) + 1]));
  }
  return text;
}

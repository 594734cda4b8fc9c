// Requests to the console. Every error is a Failure with code, text and remedy.
import { zoneName } from "./format.js";
import { tr } from "./language.js";

export class Failure extends Error {
  constructor({ code, text, remedy, response = null }, status) {
    super(text);
    this.code = code;
    this.text = text;
    this.remedy = remedy;
    this.response = response;
    this.status = status;
  }
}

export const session = { login: false, user: null, csrf: null, nameServer: "", version: "", readOnly: false };

let loggedOut = () => {};
export const onLoggedOut = (action) => { loggedOut = action; };

export async function ask(path, { method = "GET", body = null, signal = null } = {}) {
  const headers = {};
  if (method !== "GET") {
    headers["Content-Type"] = "application/json";
    headers["X-CSRF-Token"] = session.csrf ?? "";
  }
  let response;
  try {
    response = await fetch(path, {
      method, headers, signal, credentials: "same-origin", cache: "no-store",
      body: method === "GET" ? undefined : JSON.stringify(body ?? {}),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure({
      code: "CONSOLE_AWAY", text: tr`The console does not respond.`,
      remedy: tr`Check that its process (rocket console, or rocket up) is running. This page then reconnects automatically.`,
    }, 0);
  }
  let value = null;
  try { value = await response.json(); } catch { /* reported below */ }
  if (response.ok && value !== null) return value;
  if (response.status === 401 && path !== "/api/login") loggedOut();
  throw new Failure(value?.error ?? {
    code: `HTTP_${response.status}`, text: tr`Invalid response of the console.`, remedy: tr`Reload the page.`,
  }, response.status);
}

export const get = (path, parameters = {}, options = {}) => {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, value);
  }
  const text = query.toString();
  return ask(text ? `${path}?${text}` : path, options);
};
export const post = (path, body) => ask(path, { method: "POST", body });
export const remove = (path, body) => ask(path, { method: "DELETE", body });

/** The milliseconds of a time that a user has entered. The console has one parser for all times. */
export const timeOf = async (text, signal = null) => (await get("/api/time", { text: text.trim(), zone: zoneName() }, { signal })).time;

export async function openSession() {
  Object.assign(session, await ask("/api/session"));
  return session;
}

// Elements out of texts. Nothing here, or anywhere in the console, reads text as HTML: the Content-Security-Policy
// (trusted-types 'none') would stop it.

/** h("a", {href, class, onclick, …}, ...children): children are nodes or texts; null and false are left out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) add(element, child);
    else element.append(child);
  }
}

const SVG = "http://www.w3.org/2000/svg";

export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  add(element, children);
  return element;
}

/** Puts a text where it is not yet: what did not change is not touched. */
export function put(node, text) {
  const said = text === null || text === undefined ? "" : String(text);
  if (node.textContent !== said) node.textContent = said;
}

export const topicPath = (name) => `/topics/${encodeURIComponent(name)}`;
export const groupPath = (name) => `/groups/${encodeURIComponent(name)}`;
export const deadPath = (name) => `/dead-letters/${encodeURIComponent(name)}`;
export const messagePath = (m) => `/message?${new URLSearchParams({ topic: m.topic, broker: m.broker, queue: m.queue, offset: m.offset })}`;
export const brokerPath = (address) => `/broker?${new URLSearchParams({ address })}`;

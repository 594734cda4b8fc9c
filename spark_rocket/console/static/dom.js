// Creates elements. No code of the console parses strings as HTML: the Content-Security-Policy (trusted-types 'none')
// would block it.

/** h("a", {href, class, onclick, …}, ...children): children are nodes or strings; null and false are skipped. */
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

/** Set the text of a node, unless it is unchanged. */
export function put(node, text) {
  const shown = text === null || text === undefined ? "" : String(text);
  if (node.textContent !== shown) node.textContent = shown;
}

export const topicPath = (name) => `/topics/${encodeURIComponent(name)}`;
export const groupPath = (name) => `/groups/${encodeURIComponent(name)}`;
export const memberPath = (group, client) => `${groupPath(group)}/member?${new URLSearchParams({ client })}`;
export const deadPath = (name) => `/dead-letters/${encodeURIComponent(name)}`;
export const deadTopicPath = (name) => `/dead-letters/topic/${encodeURIComponent(name)}`;
export const messagePath = (m) => `/message?${new URLSearchParams({ topic: m.topic, broker: m.broker, queue: m.queue, offset: m.offset })}`;
export const brokerPath = (address) => `/broker?${new URLSearchParams({ address })}`;
/** The page of the original message of a dead letter: by its position, or else by its id. */
export const originPath = (origin) => (origin.broker !== null ? messagePath(origin) : origin.msgId ? `/messages?${new URLSearchParams({ topic: origin.topic, by: "id", id: origin.msgId })}` : topicPath(origin.topic));
export const originPlace = (origin) => (origin.broker !== null ? `${origin.broker} · ${origin.queue} · ${origin.offset}` : origin.msgId ?? "");

// Elements, made by hand: every text becomes a text node, so nothing that a cluster says is markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element. Of `properties`, functions are listeners, null and false are left out, true is an attribute without a value. */
export function h(name, properties = {}, ...children) {
  return fill(document.createElement(name), properties, children);
}

/** The same for a picture. */
export function svg(name, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, name), properties, children);
}

function fill(element, properties, children) {
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(key, value);
    else if (key === "value" || key === "checked" || key === "disabled") element[key] = value;
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  put(element, ...children);
  return element;
}

/** Add children: elements, texts, lists of them; null is nothing. */
export function put(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** Have an element hold these children and nothing else. */
export function set(element, ...children) {
  element.replaceChildren();
  return put(element, ...children);
}

/** Say something to a screen reader. */
export function say(text) {
  const place = document.getElementById("said");
  if (place.textContent !== text) place.textContent = text;
}

let lastId = 0;

/** An id that no other element has. */
export function freshId(prefix) {
  lastId += 1;
  return `${prefix}-${lastId}`;
}

/** A section with a heading and what is beside it. */
export function panel(title, { aside = null, actions = null, id = freshId("panel") } = {}, ...children) {
  return h("section", { class: "panel", "aria-labelledby": id },
    h("header", {}, h("h2", { id }, title), aside && h("span", { class: "aside" }, aside), actions && h("div", { class: "actions" }, actions)),
    children);
}

/** The head of a page. The heading is focused when the page is opened. */
export function head(title, { under = null, actions = null, beside = null } = {}) {
  return h("div", { class: "head" }, h("h1", { tabindex: "-1" }, title), beside, actions && h("div", { class: "actions" }, actions),
    under && h("p", { class: "under" }, under));
}

/** Figures: pairs of a name and a value, with a class where the value is a trouble. */
export function figures(pairs) {
  return h("dl", { class: "figures" }, pairs.map(([name, value, kind = ""]) => h("div", { class: kind }, h("dt", {}, name), h("dd", {}, value))));
}

export function badge(text, kind = "") {
  return h("span", { class: `badge ${kind}` }, text);
}

export function notice(kind, ...children) {
  return h("div", { class: `notice ${kind}` }, children);
}

/** A labelled control. */
export function field(label, control, hint = null) {
  const id = control.id || (control.id = freshId("field"));
  const hintId = hint ? `${id}-hint` : null;
  if (hintId) control.setAttribute("aria-describedby", hintId);
  return h("div", { class: "field" }, h("label", { for: id }, label), control, hint && h("span", { class: "hint", id: hintId }, hint));
}

export function select(options, chosen, properties = {}) {
  return h("select", properties, options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
}

/** The address of a page. */
export function address(page, given = {}) {
  const query = new URLSearchParams(Object.entries(given).filter(([, value]) => value !== null && value !== undefined));
  return `#/${page}${query.size ? `?${query}` : ""}`;
}

export function link(text, page, given = {}, properties = {}) {
  return h("a", { href: address(page, given), ...properties }, text);
}

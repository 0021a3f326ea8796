// Creating elements without markup: everything from the node is text, never HTML.

const SVG = "http://www.w3.org/2000/svg";

/** Create an element; children are elements or texts, null ones are left out. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Create an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined).map(asNode));
  return element;
}

function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(String(child));
}

/** Change a text only if it differs, so that selections and screen readers are not disturbed. */
export function setText(element, text) {
  const wanted = String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

/** A table with its head; `columns` are texts, or `[text, class]`. A quiet caption is for screen readers alone. */
export function table(caption, columns, { quiet = false } = {}) {
  const body = h("tbody");
  const heads = columns.map((column) => {
    const [text, kind] = Array.isArray(column) ? column : [column, null];
    return h("th", { scope: "col", class: kind }, text);
  });
  return { body, element: h("table", {}, h("caption", { class: quiet ? "quiet" : null }, caption), h("thead", {}, h("tr", {}, heads)), body) };
}

/** Names and values, as `facts` in columns or as `pairs` below each other; gives the element and a function that sets a value. */
export function facts(names, kind = "facts") {
  const values = new Map();
  const element = h("dl", { class: kind });
  for (const name of names) {
    const value = h("dd", {}, "–");
    values.set(name, value);
    element.append(h("div", {}, h("dt", {}, name), value));
  }
  return { element, set: (name, text) => setText(values.get(name), text) };
}

let clearing = 0;

/** Show the result of an action, also to screen readers. */
export function announce(text) {
  const status = document.getElementById("status");
  status.textContent = text;
  clearTimeout(clearing);
  clearing = setTimeout(() => { status.textContent = ""; }, 8000);
}

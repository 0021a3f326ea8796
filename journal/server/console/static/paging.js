// A filter and pages of names: their form in the address, the form and the buttons.

import { h } from "./dom.js";

/** Advice for users without the right to read all topics of a filter. */
export const NARROWER = "or give a filter of what you may read, as plant/#";

/** Address of a view with its parameters. */
export function address(view, parameters) {
  const kept = Object.entries(parameters).filter(([, value]) => value !== "" && value !== null);
  const query = new URLSearchParams(kept).toString();
  return query ? `#/${view}?${query}` : `#/${view}`;
}

/** The form for a topic filter. */
export function filterForm(view, filter, label = "Topic filter") {
  const input = h("input", { name: "filter", value: filter, spellcheck: "false", autocapitalize: "off", autocomplete: "off" });
  const form = h(
    "form",
    { class: "row", role: "search" },
    h("label", { class: "grow" }, label, input),
    h("button", { type: "submit" }, "Show"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = address(view, { filter: input.value.trim() || "#" });
  });
  return form;
}

/** Buttons to the first and the next page; `update` takes the last names of this page, and whether more follow. */
export function pager(view, filter, after) {
  const first = h("a", { class: "button", href: address(view, { filter }), hidden: after === "" }, "First page");
  const next = h("a", { class: "button", hidden: true, rel: "next" }, "Next page");
  const element = h("nav", { class: "row", "aria-label": "Pages" }, first, next);
  const update = (last, more, others = {}) => {
    next.hidden = !more;
    next.setAttribute("href", address(view, { filter, after: last, ...others }));
  };
  return { element, update };
}

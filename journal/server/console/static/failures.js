// The place in a view that shows an error, and removes it when the view works again.

import { h, setText } from "./dom.js";

/** Returns the element, and a function that takes an error or null; `forbidden` is advice for missing rights. */
export function failureNotice(forbidden = "") {
  const element = h("p", { class: "notice bad", role: "alert", hidden: true });
  const show = (error) => {
    element.hidden = error === null;
    const more = error?.status === 403 && forbidden ? `, ${forbidden}` : "";
    setText(element, error === null ? "" : `${error.message}${more}`);
  };
  return { element, show };
}

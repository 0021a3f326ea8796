// The place in a view where it says what went wrong, and that it is right again.

import { h, setText } from "./dom.js";

/** Gives the element, and a function that takes an error or null; `forbidden` is what else helps who may not. */
export function failureNotice(forbidden = "") {
  const element = h("p", { class: "notice bad", role: "alert", hidden: true });
  const show = (error) => {
    element.hidden = error === null;
    const more = error?.status === 403 && forbidden ? `, ${forbidden}` : "";
    setText(element, error === null ? "" : `${error.message}${more}`);
  };
  return { element, show };
}

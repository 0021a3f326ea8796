// Confirmation before actions that cannot be undone. The browser keeps the focus inside and restores it afterwards.

import { h } from "./dom.js";

/**
 * Ask for confirmation; returns whether it was given. With `word` the button is disabled until that word is typed.
 */
export function confirmed({ title, text, action, danger = false, word = null }) {
  return new Promise((resolve) => {
    const act = h("button", { type: "submit", value: "yes", class: danger ? "danger" : "main" }, action);
    const typed = word === null ? null : h("input", { autocomplete: "off", spellcheck: "false", "aria-label": `Type ${word} to confirm` });
    if (typed !== null) {
      act.disabled = true;
      typed.addEventListener("input", () => { act.disabled = typed.value !== word; });
    }
    const dialog = h(
      "dialog",
      { "aria-labelledby": "dialog-title" },
      h(
        "form",
        { method: "dialog" },
        h("h2", { id: "dialog-title" }, title),
        h("p", {}, text),
        typed === null ? null : h("p", {}, "Type ", h("code", {}, word), " to confirm.", typed),
        h("div", { class: "ends" }, h("button", { type: "button", click: () => dialog.close("no") }, "Cancel"), act),
      ),
    );
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

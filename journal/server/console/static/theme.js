// Dark and light: as the system prefers, until the user chooses.

import { setText } from "./dom.js";

const KEY = "journal-console-theme";
const NAMES = { system: "Theme: system", light: "Theme: light", dark: "Theme: dark" };
const NEXT = { system: "dark", dark: "light", light: "system" };

export function setUpTheme(button) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = localStorage.getItem(KEY);
  if (!(chosen in NAMES)) chosen = "system";

  function show() {
    document.documentElement.dataset.theme = chosen === "system" ? (dark.matches ? "dark" : "light") : chosen;
    setText(button, NAMES[chosen]);
  }

  dark.addEventListener("change", show);
  button.addEventListener("click", () => {
    chosen = NEXT[chosen];
    localStorage.setItem(KEY, chosen);
    show();
  });
  show();
}

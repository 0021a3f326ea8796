// Who is there: a token, or a name and a password.

import { h } from "./dom.js";

export function openSignIn(main, why, done) {
  const token = h("input", { name: "token", type: "password", autocomplete: "off", spellcheck: "false" });
  const user = h("input", { name: "user", autocomplete: "username", spellcheck: "false" });
  const password = h("input", { name: "password", type: "password", autocomplete: "current-password" });
  const missing = h("p", { class: "notice", role: "alert", hidden: true }, "Give a token, or a user and a password.");
  const form = h(
    "form",
    { class: "panel sign-in" },
    h("h1", {}, "Sign in to this node"),
    why === null ? null : h("p", { class: "notice bad", role: "alert" }, why),
    missing,
    h("fieldset", {}, h("legend", {}, "With a token"), h("label", {}, "Token", token)),
    h("fieldset", {}, h("legend", {}, "Or with a password"), h("label", {}, "User", user), h("label", {}, "Password", password)),
    h("button", { type: "submit", class: "main" }, "Sign in"),
    h("p", { class: "faint" }, "Kept in this tab's memory only: a reload asks again."),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (token.value.trim()) done({ token: token.value.trim() });
    else if (user.value) done({ user: user.value, password: password.value });
    else missing.hidden = false;
  });
  main.append(form);
  token.focus();
}

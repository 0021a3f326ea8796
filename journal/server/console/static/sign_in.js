// The login: a token, or a user name and a password.

import { h } from "./dom.js";
import { failureNotice } from "./failures.js";

const MISSING = new Error("Give a token, or a user and a password.");

/** Show the login; `why` is the error before, or null. `enter(credentials)` throws if they are refused. */
export function openSignIn(main, why, enter) {
  const failure = failureNotice();
  const token = h("input", { name: "token", type: "password", autocomplete: "off", spellcheck: "false" });
  const user = h("input", { name: "user", autocomplete: "username", spellcheck: "false", autocapitalize: "off" });
  const password = h("input", { name: "password", type: "password", autocomplete: "current-password" });
  const button = h("button", { type: "submit", class: "main" }, "Sign in");
  const form = h(
    "form",
    { class: "panel sign-in" },
    h("h1", {}, "Sign in to this node"),
    failure.element,
    h("fieldset", {}, h("legend", {}, "With a token"), h("label", {}, "Token", token)),
    h("fieldset", {}, h("legend", {}, "Or with a password"), h("label", {}, "User", user), h("label", {}, "Password", password)),
    button,
    h("p", { class: "faint" }, "Kept in this tab's memory only: a reload asks again."),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!token.value.trim() && !user.value) {
      failure.show(MISSING);
      return;
    }
    button.disabled = true;
    failure.show(null);
    try {
      await enter(token.value.trim() ? { token: token.value.trim() } : { user: user.value, password: password.value });
    } catch (error) {
      failure.show(error);
      (token.value ? token : password).select();
    } finally {
      button.disabled = false;
    }
  });
  failure.show(why);
  main.append(form);
  token.focus();
}

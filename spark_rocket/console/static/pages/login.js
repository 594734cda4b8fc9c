// The login form.
import { post } from "../api.js";
import { h } from "../dom.js";
import { asTrouble, field, trouble } from "../parts.js";
import { tr } from "../language.js";

export default function login(main, then) {
  document.title = tr`${tr`Log in`} · rocket console`;
  const user = h("input", { name: "user", autocomplete: "username", required: true, autocapitalize: "off", spellcheck: "false" });
  const password = h("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
  const problem = h("div");
  const go = h("button", { type: "submit", class: "primary" }, tr`Log in`);
  const form = h("form", { class: "card login" },
    h("h1", { tabindex: "-1" }, tr`Log in`), problem, field(tr`User`, user), field(tr`Password`, password), h("div", { class: "actions" }, go));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    try {
      await post("/api/login", { user: user.value, password: password.value });
      then();
    } catch (error) {
      problem.replaceChildren(trouble(asTrouble(error)));
      password.value = "";
      password.focus();
    } finally { go.disabled = false; }
  });
  main.replaceChildren(form);
  user.focus();
}

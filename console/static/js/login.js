// Logging in: with a name and a password of the cluster or of the console, or by the address that the command has printed.
import * as api from "./api.js";
import { field, h, select, set } from "./dom.js";

export function loginPage(main, session, onIn) {
  if (session.login === "token") {
    main.append(h("section", { class: "panel login" }, h("form", {},
      h("h1", { tabindex: "-1" }, "Open the printed address"),
      h("p", {}, "This console uses the login of the person who started it. Open the whole address that ", h("code", {}, "lowtide console"), " has printed: it has a token in it."))));
    return;
  }
  const user = h("input", { name: "user", autocomplete: "username", required: true, maxlength: 256, autocapitalize: "none", spellcheck: "false" });
  const password = h("input", { name: "password", type: "password", autocomplete: "current-password", required: true, maxlength: 1024 });
  const mechanism = select(session.mechanisms.map((each) => [each, each]), session.mechanisms[0], { name: "mechanism" });
  const trouble = h("div", { role: "alert" });
  const button = h("button", { class: "main" }, "Log in");
  const form = h("form", {
    submit: async (event) => {
      event.preventDefault();
      button.disabled = true;
      set(trouble);
      try {
        await api.post("login", { user: user.value, password: password.value, mechanism: mechanism.value });
        await onIn();
      } catch (error) {
        set(trouble, h("div", { class: "notice trouble" }, error.message));
        password.value = "";
        password.focus();
      } finally {
        button.disabled = false;
      }
    },
  },
  h("h1", { tabindex: "-1" }, "Log in"),
  h("p", {}, session.login === "users"
    ? "With a user of this console. The person who runs it adds users."
    : "With a user of the cluster. What you see and may do is what its access rules allow."),
  field("Name", user), field("Password", password), session.mechanisms.length > 1 && field("Mechanism", mechanism), trouble, button);
  main.append(h("section", { class: "panel login" }, form));
}

// A change on a page: a form, then a rehearsal of what it asks for, then exactly that is carried out.
import * as api from "./api.js";
import { h, notice, panel, say, set } from "./dom.js";

/**
 * The form of a change. `path` names it, `asked()` returns what is asked for, `shown(plan)` what would happen, `confirm(plan)` the
 * words of the button, `done(outcome)` is called afterwards. `typed(plan)` returns a text that must be typed before, or null.
 */
export function change({ title, aside = null, path, fields, asked, shown, confirm, done, write, danger = false, typed = () => null }) {
  const trouble = h("div", { role: "alert" });
  const plan_place = h("div");
  const ask = h("button", { class: "main" }, "Rehearse");
  const form = h("form", {
    input: () => set(plan_place),
    change: () => set(plan_place),
    submit: async (event) => {
      event.preventDefault();
      set(trouble);
      set(plan_place);
      ask.disabled = true;
      try {
        const plan = await api.post(`${path}/rehearsal`, asked());
        set(plan_place, planPanel(plan));
        const heading = plan_place.querySelector("h2");
        heading.setAttribute("tabindex", "-1");
        heading.focus();
        say("The rehearsal is ready.");
      } catch (error) {
        set(trouble, notice("trouble", error.message));
      } finally {
        ask.disabled = false;
      }
    },
  }, h("div", { class: "body" }, fields, h("div", {}, ask)));

  function planPanel(plan) {
    const wanted = typed(plan);
    const name = wanted === null ? null : h("input", { autocomplete: "off", spellcheck: "false", "aria-label": `Type ${wanted} to confirm`, input: () => { go.disabled = name.value !== wanted; } });
    const go = h("button", {
      type: "button",
      class: danger ? "main danger" : "main",
      disabled: wanted !== null,
      click: async () => {
        go.disabled = true;
        set(trouble);
        try {
          const outcome = await api.post(path, wanted === null ? { plan: plan.plan } : { plan: plan.plan, name: name.value });
          set(plan_place);
          ask.focus({ preventScroll: true });
          done(outcome, plan);
        } catch (error) {
          set(plan_place);
          set(trouble, notice("trouble", error.message));
        }
      },
    }, confirm(plan));
    return panel("Rehearsal", {}, h("div", { class: "body" },
      shown(plan),
      notes(plan.notes),
      write ? [name && h("p", {}, "Type ", h("b", { class: "mono" }, wanted), " to confirm: ", name), h("div", {}, go)] : notice("", "This console is read-only: nothing can be carried out.")));
  }

  return { element: h("div", { class: "stack" }, panel(title, { aside }, form), trouble, plan_place), form, trouble };
}

/** Sentences that the visitor should know. */
export function notes(sentences) {
  return sentences?.length ? h("ul", { class: "notices" }, sentences.map((each) => h("li", { class: "notice warning" }, each))) : null;
}

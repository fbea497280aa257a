// A dialog that asks before something is changed.
import { freshId, h } from "./dom.js";

/** Shows a dialog with a heading; `build(close)` returns what is in it. Ends with what `close` was given, or null. */
export function dialog(title, build) {
  return new Promise((resolve) => {
    const id = freshId("dialog");
    const before = document.activeElement;
    const element = h("dialog", { "aria-labelledby": id });
    let outcome = null;
    const close = (value = null) => {
      outcome = value;
      element.close();
    };
    element.append(h("div", {}, h("h2", { id }, title), build(close)));
    element.addEventListener("close", () => {
      element.remove();
      before?.focus?.();
      resolve(outcome);
    });
    document.body.append(element);
    element.showModal();
  });
}

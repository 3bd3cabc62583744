/** Dialogs. Each returns a promise of the answer, null if it is closed. */

import { el, iconButton } from "./dom.js";

/** Show a modal dialog; `build` gets a function that closes it with a result. */
export function dialog(title, build, { name = "" } = {}) {
  return new Promise((resolve) => {
    let result = null;
    const close = (value = null) => {
      result = value;
      element.close();
    };
    const heading = el("h2", { text: title, tabindex: "-1", dir: "auto" });
    const element = el(
      "dialog",
      { class: name, "aria-label": title },
      el(
        "div",
        { class: "dialog-head" },
        heading,
        iconButton("close", "Close", () => close()),
      ),
      build(close),
    );
    element.addEventListener("close", () => {
      element.remove();
      resolve(result);
    });
    element.addEventListener("pointerdown", (event) => event.target === element && close());
    document.body.append(element);
    element.showModal();
    if (!element.querySelector("[autofocus]")) heading.focus();
  });
}

/** Ask for a text. */
export function ask(
  title,
  { value = "", label = title, button = "Save", type = "text", about = "", suggestions = [] } = {},
) {
  return dialog(title, (close) => {
    const field = el("input", {
      type,
      value,
      "aria-label": label,
      autofocus: true,
      list: suggestions.length ? "suggestions" : null,
      dir: "auto",
    });
    return el(
      "form",
      { onsubmit: (event) => (event.preventDefault(), close(field.value)) },
      about ? el("p", { class: "quiet", text: about }) : null,
      field,
      el(
        "datalist",
        { id: "suggestions" },
        suggestions.map((text) => el("option", { value: text })),
      ),
      el("div", { class: "buttons" }, cancelButton(close), el("button", { class: "button primary", text: button })),
    );
  });
}

/** Ask for the key of the server: `{key, remember}`. */
export function askForKey(error, wasWrong) {
  const why = error.code === "other_user" ? error.message : "This server needs a key (--api-key).";
  return dialog("Key of the server", (close) => {
    const key = el("input", {
      type: "password",
      autocomplete: "current-password",
      "aria-label": "Key",
      autofocus: true,
      required: true,
    });
    const remember = el("input", { type: "checkbox" });
    return el(
      "form",
      { onsubmit: (event) => (event.preventDefault(), close({ key: key.value, remember: remember.checked })) },
      el("p", { class: "quiet", text: wasWrong ? "The server did not accept this key." : why }),
      error.hint ? el("p", { class: "quiet", text: error.hint }) : null,
      key,
      el("label", { class: "check" }, remember, "Remember it in this browser"),
      el(
        "div",
        { class: "buttons" },
        cancelButton(close),
        el("button", { class: "button primary", text: "Use this key" }),
      ),
    );
  });
}

export function cancelButton(close) {
  return el("button", { type: "button", class: "button", text: "Cancel", onclick: () => close() });
}

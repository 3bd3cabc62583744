/** Short messages at the edge of the page. */

import { Unreachable } from "./api.js";
import { sentences } from "./format.js";
import { el, find, iconButton } from "./dom.js";
import { icon } from "./icons.js";

const SHOWN_MS = 6000;

/** Show a message; `action` is `{label, run}`. Returns a function that removes it. */
export function toast(text, { action, level = "info", lasts = SHOWN_MS } = {}) {
  const remove = () => element.remove();
  const element = el(
    "div",
    { class: `toast ${level}`, role: level === "error" ? "alert" : "status" },
    icon(level === "info" ? "info" : "alert"),
    el("span", { class: "grow", text }),
    action &&
      el("button", { type: "button", class: "button", text: action.label, onclick: () => (remove(), action.run()) }),
    iconButton("close", "Close", remove),
  );
  const place = find("#toasts");
  place.append(element);
  if (place.hidePopover && place.matches(":popover-open")) place.hidePopover();
  place.showPopover?.(); // above dialogs
  if (lasts) setTimeout(remove, lasts);
  return remove;
}

/** Show an error of a request, unless the user stopped it, or a banner shows it already. */
export function told(error) {
  if (error.name === "AbortError" || error instanceof Unreachable) return;
  toast(sentences(error.message, error.hint), { level: "error", lasts: 10_000 });
}

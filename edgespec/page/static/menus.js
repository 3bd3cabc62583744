/** Menus and panels that open next to a button, and close with Esc or a click elsewhere. */

import { el } from "./dom.js";
import { icon } from "./icons.js";

const GAP = 6;

/** Open a panel next to a button. Returns the panel. */
export function anchored(button, content, { label, role = "dialog", onclose } = {}) {
  if (button.getAttribute("aria-expanded") === "true") return null;
  const panel = el(
    "div",
    { class: role === "menu" ? "panel menu" : "panel", popover: "auto", role, "aria-label": label, tabindex: "-1" },
    content,
  );
  (button.closest("dialog") ?? document.body).append(panel);
  panel.addEventListener("toggle", ({ newState }) => {
    if (newState !== "closed") return;
    const hadFocus = panel.contains(document.activeElement) || document.activeElement === document.body;
    panel.remove();
    button.removeAttribute("aria-expanded");
    if (hadFocus) button.focus();
    onclose?.();
  });
  button.setAttribute("aria-expanded", "true");
  panel.showPopover();
  place(panel, button);
  panel.focus();
  return panel;
}

function place(panel, button) {
  const around = button.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = panel;
  const below = around.bottom + GAP + height < innerHeight || around.top < height + GAP;
  const top = below ? around.bottom + GAP : around.top - GAP - height;
  const left = Math.min(around.left, innerWidth - width - GAP);
  panel.style.top = `${Math.max(GAP, Math.min(top, innerHeight - height - GAP))}px`;
  panel.style.left = `${Math.max(GAP, left)}px`;
}

/** Open a menu. An item is `{label, icon, run, about, checked, danger}`; null draws a line. */
export function menu(button, items, label) {
  const entries = items.map((item) => (item ? entry(item) : el("hr")));
  const panel = anchored(button, entries, { label, role: "menu" });
  if (!panel) return;
  const buttons = [...panel.querySelectorAll("button")];
  panel.addEventListener("click", (event) => event.target.closest("button") && panel.hidePopover());
  panel.addEventListener("keydown", (event) => {
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    const index = buttons.indexOf(document.activeElement);
    let next = event.key in steps ? index + steps[event.key] : null;
    if (event.key === "Home") next = 0;
    if (event.key === "End") next = buttons.length - 1;
    if (event.key === "Tab") panel.hidePopover();
    if (next === null) return;
    event.preventDefault();
    buttons.at(next % buttons.length).focus();
  });
  (buttons.find((each) => each.getAttribute("aria-checked") === "true") ?? buttons[0])?.focus();
}

function entry({ label, icon: name, run, about, checked, danger }) {
  const isChoice = checked !== undefined;
  return el(
    "button",
    {
      type: "button",
      class: danger ? "danger" : "",
      role: isChoice ? "menuitemradio" : "menuitem",
      "aria-checked": isChoice ? String(checked) : null,
      onclick: run,
    },
    name ? icon(name) : null,
    el(
      "span",
      { class: "grow" },
      el("span", { text: label }),
      about ? el("span", { class: "quiet", text: about }) : null,
    ),
    checked ? icon("check") : null,
  );
}

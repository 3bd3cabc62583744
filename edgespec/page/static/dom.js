/** Makes elements. Texts stay texts: nothing here reads HTML. */

import { icon } from "./icons.js";

export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "text") element.textContent = value;
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const find = (selector, root = document) => root.querySelector(selector);

/** A button that shows an icon; `label` is for screen readers and the tooltip. */
export function iconButton(name, label, onclick, properties = {}) {
  return el(
    "button",
    { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...properties },
    icon(name),
  );
}

/** Have screen readers read a text when they are idle. */
export function announce(text) {
  find("#announcer").textContent = text;
}

export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyWithoutClipboard(text); // a page without HTTPS on another host has no clipboard
  }
  if (!button) return;
  button.replaceChildren(icon("check"));
  announce("Copied");
  setTimeout(() => button.replaceChildren(icon("copy")), 1500);
}

function copyWithoutClipboard(text) {
  const area = el("textarea", { class: "visually-hidden", value: text });
  (find("dialog[open]") ?? document.body).append(area);
  const before = document.activeElement;
  area.select();
  document.execCommand("copy");
  area.remove();
  before?.focus();
}

/** Keyboard shortcuts, and the dialog that lists them. */

import { dialog } from "./dialogs.js";
import { el } from "./dom.js";

const isMac = navigator.platform.startsWith("Mac");
const MAIN = isMac ? "⌘" : "Ctrl";

// prettier-ignore
const SHORTCUTS = [
  ["Anywhere", [
    [`${MAIN} K`, "Search all chats"],
    [`${MAIN} Shift O`, "New chat"],
    [`${MAIN} B`, "Show or hide the list of chats"],
    [`${MAIN} ,`, "Settings of this chat"],
    [`${MAIN} Shift M`, "Choose the model"],
    ["Alt ↑ / ↓", "Previous or next message"],
    ["Esc", "Stop the answer, or go back to the message field"],
    [`? or ${MAIN} /`, "This list"],
  ]],
  ["In the message field", [
    ["Enter", "Send"],
    ["Shift Enter", "New line"],
    ["↑", "In an empty field: edit your last message"],
  ]],
  ["On a message", [
    ["C", "Copy"],
    ["E", "Edit"],
    ["R", "Regenerate the answer"],
    ["F", "Fork: a new chat up to here"],
    ["← / →", "Previous or next version"],
    ["T", "Colour tokens by drafter"],
  ]],
  ["In the list of chats", [
    ["↑ / ↓", "Move"],
    ["F2", "Rename"],
    ["Delete", "Delete"],
    ["Shift F10", "More"],
  ]],
];

export function showShortcuts() {
  return dialog(
    "Keyboard shortcuts",
    () =>
      el(
        "div",
        { class: "shortcuts" },
        SHORTCUTS.map(([title, rows]) =>
          el(
            "section",
            {},
            el("h3", { text: title }),
            el(
              "dl",
              {},
              rows.map(([keys, what]) => el("div", {}, el("dt", {}, keycaps(keys)), el("dd", { text: what }))),
            ),
          ),
        ),
      ),
    { name: "wide" },
  );
}

function keycaps(keys) {
  return keys
    .split(" ")
    .map((key) =>
      ["or", "/"].includes(key) && keys.includes(` ${key} `)
        ? el("span", { class: "quiet", text: ` ${key} ` })
        : el("kbd", { text: key }),
    );
}

const isEditing = (target) => target.closest?.("input, textarea, select, [contenteditable]");
const isCovered = () => document.querySelector("dialog[open], .panel:popover-open");

/** Listen to the keyboard. `run` has a function for each action. */
export function listen(run) {
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing) return;
    const name = actionOf(event);
    if (!name || !run[name]) return;
    if (run[name](event) !== false) event.preventDefault();
  });
}

function actionOf(event) {
  const { key, shiftKey, altKey } = event;
  const main = isMac ? event.metaKey : event.ctrlKey;
  const letter = key.toLowerCase();
  if (main && letter === "/") return "shortcuts";
  if (isCovered()) return null;
  if (main && shiftKey) return { o: "newChat", m: "model" }[letter];
  if (main) return { k: "search", b: "list", ",": "settings" }[letter];
  if (altKey) return { ArrowUp: "previous", ArrowDown: "next" }[key];
  if (key === "Escape") return "escape";
  if (isEditing(event.target)) return key === "ArrowUp" ? "editLast" : null;
  if (key === "?") return "shortcuts";
  if (event.ctrlKey || event.metaKey) return null;
  if (event.target.closest?.("button, a, summary") && !event.target.closest(".turn")) return null;
  return {
    c: "copy",
    e: "edit",
    r: "regenerate",
    f: "fork",
    t: "drafters",
    ArrowLeft: "versionBefore",
    ArrowRight: "versionAfter",
  }[key];
}

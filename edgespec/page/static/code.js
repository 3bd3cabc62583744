/** Blocks of code: their language, a button that copies them, and colours. */

import { cleaned } from "./clean.js";
import { copy, el, iconButton } from "./dom.js";

const MOST_COLOURED = 50_000; // characters: colours of more take too long

let library = null;

export function decorateCode(fragment) {
  for (const code of fragment.querySelectorAll("pre > code")) {
    const language = /^language-(.+)$/.exec(code.className)?.[1] ?? "";
    const button = iconButton("copy", "Copy the code", () => copy(code.textContent, button));
    const block = el(
      "div",
      { class: "code", dir: "ltr" },
      el("div", { class: "code-head" }, el("span", { text: language }), button),
    );
    code.parentElement.replaceWith(block);
    block.append(el("pre", { tabindex: "0" }, code));
    colour(code, language);
  }
}

function colour(code, language) {
  if (!language || code.textContent.length > MOST_COLOURED) return;
  if (library === null) library = import("./vendor/highlight.min.js").then((module) => (library = module.default));
  if (library instanceof Promise) library.then(() => paint(code, language)).catch(() => {});
  else paint(code, language);
}

function paint(code, language) {
  if (!library.getLanguage(language)) return;
  const { value } = library.highlight(code.textContent, { language, ignoreIllegals: true });
  code.replaceChildren(cleaned(value, ["span"], ["class"]));
}

/** The reasoning of an answer: folded, but open while it is written. */

import { el } from "./dom.js";
import { seconds } from "./format.js";
import { icon } from "./icons.js";
import { Prose } from "./prose.js";

const BEGIN = /^\s*<think>/;
const END = "</think>";

/** Reasoning and answer: `{thought, isClosed, text, start}`; `start` is where the text begins. */
export function parts(text) {
  const begin = BEGIN.exec(text);
  if (!begin) return { thought: "", isClosed: true, text, start: 0 };
  const end = text.indexOf(END, begin[0].length);
  if (end < 0)
    return { thought: withoutBegunEnd(text.slice(begin[0].length)), isClosed: false, text: "", start: text.length };
  const rest = text.slice(end + END.length);
  const said = rest.trimStart();
  return {
    thought: text.slice(begin[0].length, end).trim(),
    isClosed: true,
    text: said,
    start: text.length - said.length,
  };
}

/** The beginning of the mark is not shown while the rest of it is generated. */
function withoutBegunEnd(text) {
  for (let length = END.length - 1; length > 0; length--) {
    if (text.endsWith(END.slice(0, length))) return text.slice(0, -length).trim();
  }
  return text.trim();
}

export class Thought {
  constructor(text, { took = null, isOpen = false } = {}) {
    this.prose = new Prose(text);
    this.label = el("span");
    this.element = el(
      "details",
      { class: "fold thought", open: isOpen },
      el("summary", {}, icon("thought"), this.label, icon("down")),
      this.prose.element,
    );
    this.element.addEventListener("toggle", () => this.element.open && this.prose.show());
    this.name(took);
  }

  name(took) {
    this.label.textContent = took === null ? "Thoughts" : `Thought for ${seconds(took)}`;
  }

  grow(text) {
    this.label.textContent = "Thinking…";
    this.prose.grow(text);
  }

  close(text, took) {
    this.prose.grow(text);
    this.prose.finish();
    this.name(took);
    this.element.open = false;
  }
}

/** Tokens in the colours of the drafters that proposed them. */

import { count } from "./format.js";
import { el } from "./dom.js";

const NEAR = 24; // characters that Markdown has between two letters at most
// Each has its colour in drafters.css; others share four.
const COLOURED =
  `grammar lookup suffix recycling lookahead corpus self mtp assistant medusa hydra eagle1 eagle3 peagle dflash
  dspark draft`.split(/\s+/);

/** The tokens of an answer: their texts, drafters and passes. */
export class Tokens {
  constructor(listed = []) {
    this.text = "";
    this.all = [];
    for (const [text, drafter, pass] of listed) this.add(text, drafter, pass);
  }

  add(text, drafter, pass) {
    if (text) this.all.push({ start: this.text.length, drafter, pass });
    this.text += text;
  }

  /** The index of the token at a character. */
  at(position) {
    let low = 0;
    let high = this.all.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.all[middle].start <= position) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  get counts() {
    const counts = new Map();
    for (const { drafter } of this.all) counts.set(drafter, (counts.get(drafter) ?? 0) + 1);
    return counts;
  }
}

/** Colour the texts of a fragment, which was made from the `length` characters of `tokens` at `start`. */
export function paint(fragment, tokens, start, length) {
  const source = tokens.text.slice(start, start + length);
  const walker = document.createTreeWalker(fragment, NodeFilter.SHOW_TEXT);
  const nodes = [];
  while (walker.nextNode())
    if (!walker.currentNode.parentElement?.closest(".code-head, math")) nodes.push(walker.currentNode);
  let next = 0;
  for (const node of nodes) next = paintNode(node, tokens, source, start, next);
}

/** Markdown leaves letters out and adds none, so a text is found as a whole, or letter by letter. */
function paintNode(node, tokens, source, start, next) {
  const runs = [];
  const whole = source.indexOf(node.data, next);
  for (let index = 0; index < node.data.length; index++) {
    const at = whole >= 0 ? whole + index : near(source, node.data[index], next);
    const token = at >= 0 ? tokens.at(start + at) : -1;
    if (at >= 0) next = at + 1;
    if (runs.at(-1)?.token === token) runs.at(-1).text += node.data[index];
    else runs.push({ token, text: node.data[index] });
  }
  node.replaceWith(...runs.map(({ token, text }) => shown(tokens.all[token], text)));
  return next;
}

function near(text, letter, from) {
  const at = text.indexOf(letter, from);
  return at - from < NEAR ? at : -1;
}

function shown(token, text) {
  if (!token?.drafter || !text.trim()) return text;
  return el("span", {
    class: `drafted ${colourOf(token.drafter)}`,
    title: `${token.drafter}, pass ${token.pass + 1}`,
    text,
  });
}

function colourOf(drafter) {
  if (COLOURED.includes(drafter)) return `by-${drafter}`;
  let sum = 0;
  for (const letter of drafter) sum = (sum * 31 + letter.codePointAt(0)) % 4;
  return `by-other-${sum}`;
}

/** Which colours mean which drafters, with their numbers of tokens. */
export function legend(tokens) {
  const counts = [...tokens.counts].sort((a, b) => b[1] - a[1]);
  const all = tokens.all.length || 1;
  return el(
    "ul",
    { class: "legend", "aria-label": "Tokens by drafter" },
    counts.map(([drafter, n]) =>
      el(
        "li",
        {},
        el("span", { class: drafter ? `swatch ${colourOf(drafter)}` : "swatch" }),
        el("span", { text: drafter || "the model itself" }),
        el("span", { class: "quiet", text: `${count(n)} · ${Math.round((100 * n) / all)} %` }),
      ),
    ),
  );
}

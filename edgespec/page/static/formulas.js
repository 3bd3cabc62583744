/** Formulas between $, $$, \( \) and \[ \], which KaTeX turns into MathML. */

import { cleaned, escaped } from "./clean.js";

const DISPLAY = /^ {0,3}(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[^\S\n]*(?:\n|$)/;
const INLINE = [
  [/^\$\$([^$]+?)\$\$/, true],
  [/^\\\[([\s\S]+?)\\\]/, true],
  [/^\\\(([\s\S]+?)\\\)/, false],
  [/^\$(?![\s$])((?:\\[^\n]|[^\\\n$])+?)(?<!\s)\$(?!\d)/, false], // "$5 or $10" is no formula
];
const TAGS =
  `math maction menclose merror mfrac mglyph mi mn mo mover mpadded mphantom mroot mrow ms mspace msqrt mstyle
  msub msubsup msup mtable mtd mtext mtr munder munderover`.split(/\s+/);
const ATTRIBUTES =
  `display mathvariant stretchy fence separator lspace rspace minsize maxsize symmetric movablelimits accent
  accentunder linethickness displaystyle scriptlevel mathcolor mathbackground mathsize width height depth voffset notation
  columnalign columnspacing rowspacing columnlines rowlines largeop`.split(/\s+/);

const place = (tex, isDisplay) =>
  `<code class="${isDisplay ? "md-display" : "md-formula"}">${escaped(tex.trim())}</code>`;

export const formulaExtensions = [
  {
    name: "display",
    level: "block",
    start: (text) => text.match(/(?:^|\n) {0,3}(?:\$\$|\\\[)/)?.index,
    tokenizer(text) {
      const found = DISPLAY.exec(text);
      return found ? { type: "display", raw: found[0], tex: found[1] ?? found[2] } : undefined;
    },
    renderer: ({ tex }) => `<p>${place(tex, true)}</p>`,
  },
  {
    name: "formula",
    level: "inline",
    start: (text) => text.match(/\$|\\[([]/)?.index,
    tokenizer(text) {
      for (const [pattern, isDisplay] of INLINE) {
        const found = pattern.exec(text);
        if (found) return { type: "formula", raw: found[0], tex: found[1], isDisplay };
      }
      return undefined;
    },
    renderer: ({ tex, isDisplay }) => place(tex, isDisplay),
  },
];

let library = null;

/** Show the formulas of a fragment; until KaTeX is loaded, they are shown as they were written. */
export function decorateFormulas(fragment) {
  const places = fragment.querySelectorAll(".md-formula, .md-display");
  if (!places.length) return;
  if (library === null) library = import("./vendor/katex.min.js").then(() => (library = window.katex));
  if (library instanceof Promise) library.then(() => places.forEach(show)).catch(() => {});
  else places.forEach(show);
}

function show(place) {
  const tex = place.textContent;
  const isDisplay = place.classList.contains("md-display");
  const options = { displayMode: isDisplay, output: "mathml", throwOnError: true, trust: false, strict: "ignore" };
  try {
    const html = library.renderToString(tex, { ...options, maxSize: 20, maxExpand: 500 });
    const math = cleaned(html.replace(/<annotation[^>]*>[^<]*<\/annotation>/g, ""), TAGS, ATTRIBUTES).querySelector(
      "math",
    );
    for (const table of math.querySelectorAll("mtable")) align(table);
    place.replaceWith(math);
  } catch (error) {
    place.title = error.message; // a formula that cannot be read stays as it was written
  }
}

/** Align the columns of a table: browsers ignore the attributes that say how. */
function align(table) {
  const sides = table.getAttribute("columnalign")?.split(" ") ?? [];
  const gaps = table.getAttribute("columnspacing")?.split(" ") ?? [];
  for (const row of table.children) {
    [...row.children].forEach((cell, column) => {
      if (sides[column] !== "center" && sides[column]) cell.classList.add(`md-${sides[column]}`);
      if (parseFloat(gaps[column]) === 0) cell.classList.add("md-joined");
    });
  }
}

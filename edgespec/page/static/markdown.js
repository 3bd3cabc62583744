/** Markdown of models as elements. Nothing of it can run, send a form, or look like a part of the page. */

import { Marked } from "./vendor/marked.esm.js";
import { cleaned, escaped } from "./clean.js";
import { decorateCode } from "./code.js";
import { decorateFormulas, formulaExtensions } from "./formulas.js";
import { el } from "./dom.js";

const TAGS =
  `a abbr b blockquote br code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i kbd li mark ol p pre q s samp
  small span strong sub summary sup table tbody td tfoot th thead tr u ul var`.split(/\s+/);
const ATTRIBUTES = ["href", "class", "start", "align", "colspan", "rowspan", "open"];
// Other HTML is shown as it was written. A parser would report handlers and styles in it to the policy, even those of
// elements that are never inserted.
const HARMLESS = new RegExp(
  `^(?:[^<]|</?(?:${TAGS.join("|")})(?:\\s+(?:${ATTRIBUTES.join("|")})(?:="[^"<>]*")?)*\\s*/?>)*$`,
  "i",
);

const marked = new Marked({
  gfm: true,
  extensions: formulaExtensions,
  renderer: {
    html: ({ text, block }) => (HARMLESS.test(text) ? text : block ? `<p>${escaped(text)}</p>` : escaped(text)),
    checkbox: ({ checked }) => `<span class="${checked ? "md-done" : "md-open"}"></span> `,
    image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`, // the policy loads no image
  },
});

/** The blocks of a text; `raw` of all of them together is the text. */
export const blocksOf = (text) => marked.lexer(text);

/** Blocks as a fragment that is safe to insert. */
export function rendered(blocks) {
  const fragment = cleaned(marked.parser(blocks), TAGS, ATTRIBUTES);
  for (const link of fragment.querySelectorAll("a")) decorateLink(link);
  for (const each of [...fragment.children, ...fragment.querySelectorAll("td, th")]) each.dir = "auto";
  for (const table of fragment.querySelectorAll("table")) {
    const scroller = el("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" });
    table.replaceWith(scroller);
    scroller.append(table);
  }
  for (const task of fragment.querySelectorAll(".md-done, .md-open")) {
    task.setAttribute("role", "img");
    task.setAttribute("aria-label", task.className === "md-done" ? "done" : "to do");
  }
  decorateFormulas(fragment);
  decorateCode(fragment);
  return fragment;
}

function decorateLink(link) {
  const address = link.getAttribute("href");
  if (!address) return;
  link.target = "_blank";
  link.rel = "noopener noreferrer";
  link.title = address;
}

/** Marks the words of a search in the open chat, without changing its elements. */

import { find } from "./dom.js";

const MOST = 500; // marks

export function markMatches(query) {
  if (!globalThis.Highlight) return;
  const words = query
    .toLowerCase()
    .split(/\s+/)
    .filter((word) => word.length > 1);
  if (!words.length) {
    CSS.highlights.delete("found");
    return;
  }
  const ranges = [];
  const walker = document.createTreeWalker(find("#turns"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode() && ranges.length < MOST) {
    const node = walker.currentNode;
    const text = node.data.toLowerCase();
    for (const word of words) {
      for (let at = text.indexOf(word); at >= 0 && ranges.length < MOST; at = text.indexOf(word, at + word.length)) {
        if (at + word.length <= node.length) ranges.push(rangeOf(node, at, word.length));
      }
    }
  }
  CSS.highlights.set("found", new Highlight(...ranges));
}

function rangeOf(node, start, length) {
  const range = new Range();
  range.setStart(node, start);
  range.setEnd(node, start + length);
  return range;
}

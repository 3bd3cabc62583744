/** A text in Markdown on the page: at once, in pieces if it is long, or as it grows. */

import { app } from "./app.js";
import { el } from "./dom.js";
import { paint } from "./drafters.js";
import { blocksOf, rendered } from "./markdown.js";

const PIECE_MS = 12; // of rendering, between two frames
const LONG = 80; // blocks: of more, the browser lays out only those that can be seen
const SLOW_MS = 8; // rendering the last block takes so long: do it less often

export class Prose {
  /** `tokens` colours the text by the drafters of its tokens, if the page shows them; it is at `start` in their text. */
  constructor(text = "", { tokens = null, start = 0 } = {}) {
    this.element = el("div", { class: "prose" });
    this.text = "";
    Object.assign(this, { tokens, start });
    this.restart();
    if (text) this.waitFor(text);
  }

  restart() {
    this.settled = 0; // characters in blocks that cannot change any more
    this.place = this.start; // in the tokens
    this.open = []; // elements of the last blocks, which may still change
    this.frame = 0;
    this.renderedAt = 0;
    this.cost = 0;
    this.element.replaceChildren();
  }

  /** Show the text as it is until `show` is called: that takes no time, and the browser can find words in it. */
  waitFor(text) {
    this.text = text.replace(/\r\n?/g, "\n");
    this.isWaiting = true;
    this.element.classList.add("raw");
    this.element.textContent = this.text;
  }

  /** Render all of a text. */
  show() {
    if (!this.isWaiting) return;
    this.isWaiting = false;
    const blocks = blocksOf(this.text);
    this.restart();
    this.element.classList.remove("raw");
    this.showFrom(blocks, 0);
  }

  showFrom(blocks, first) {
    const start = performance.now();
    let next = first;
    while (next < blocks.length && performance.now() - start < PIECE_MS) this.append([blocks[next++]]);
    if (next < blocks.length) requestAnimationFrame(() => this.showFrom(blocks, next));
  }

  /** Show a text that has grown. Only its last blocks are rendered again. */
  grow(text) {
    this.text = text.replace(/\r\n?/g, "\n");
    if (this.frame) return;
    this.frame = requestAnimationFrame((now) => {
      this.frame = 0;
      if (this.cost > SLOW_MS && now - this.renderedAt < 12 * this.cost) this.grow(this.text);
      else this.renderEnd();
    });
  }

  /** Render what has grown, now. */
  finish() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.renderEnd();
  }

  renderEnd() {
    const start = performance.now();
    for (const element of this.open) element.remove();
    const blocks = blocksOf(this.text.slice(this.settled));
    const last = blocks.findLastIndex((block) => block.type !== "space");
    const settled = blocks.slice(0, Math.max(0, last));
    this.append(settled);
    this.settled += settled.reduce((length, block) => length + block.raw.length, 0);
    const place = this.place;
    this.open = this.append(blocks.slice(Math.max(0, last)));
    this.place = place;
    this.renderedAt = performance.now();
    this.cost = this.renderedAt - start;
  }

  append(blocks) {
    const added = [];
    for (const block of blocks) {
      const fragment = rendered([block]);
      if (app.showsDrafters && this.tokens) paint(fragment, this.tokens, this.place, block.raw.length);
      this.place += block.raw.length;
      added.push(...fragment.childNodes);
      this.element.append(fragment);
    }
    if (this.element.childElementCount > LONG) this.element.classList.add("long");
    return added;
  }

  /** Render again, with or without colours. */
  repaint() {
    if (this.isWaiting) return;
    const text = this.text;
    this.restart();
    this.showFrom(blocksOf(text), 0);
  }
}

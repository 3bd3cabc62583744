/** The messages of the open chat, and the answer that is being generated. */

import { app, answerHere } from "./app.js";
import { el, find } from "./dom.js";
import { finished } from "./live.js";
import { TurnView } from "./turn.js";

const NEAR = "1200px 0px"; // of the viewport: messages farther away are not rendered yet
const LAST = 4; // messages that are rendered at once when a chat is opened
const AT_END = 40; // pixels

export class Transcript {
  constructor(actions) {
    this.actions = actions;
    this.scroller = find("#scroller");
    this.list = find("#turns");
    this.views = new Map();
    this.notices = []; // of the last answer; they are not saved with the chat
    this.follows = true; // the end, while text is added
    this.top = 0;
    this.near = new IntersectionObserver((entries) => this.renderNear(entries), {
      root: this.scroller,
      rootMargin: NEAR,
    });
    this.scroller.addEventListener("scroll", () => this.scrolled(), { passive: true });
    new ResizeObserver(() => this.follow()).observe(this.list);
    new ResizeObserver(() => this.follow()).observe(this.scroller);
    find("#to-end").addEventListener("click", () => this.toEnd());
  }

  /** Show the open chat; views of messages that it still has are kept. */
  update({ isOpened = false } = {}) {
    const answer = answerHere();
    const { turns } = app.chat;
    const shown = answer ? turns.slice(0, turns.findIndex((turn) => turn.key === answer.after) + 1) : turns;
    const views = new Map();
    for (const turn of shown) views.set(turn.key, this.views.get(turn.key) ?? this.newView(turn));
    for (const [key, view] of this.views) if (!views.has(key)) this.near.unobserve(view.element);
    this.views = views;
    shown.forEach((turn, index) => {
      const isLast = !answer && index === shown.length - 1;
      views.get(turn.key).update(turn, { isLast, next: shown[index + 1]?.role });
    });
    this.place(
      [...views.values()].map((view) => view.element),
      answer,
    );
    if (isOpened) {
      for (const turn of shown.slice(-LAST)) views.get(turn.key).render();
      this.toEnd();
    }
    document.body.classList.toggle("is-empty", !this.list.children.length);
  }

  newView(turn) {
    const view = new TurnView(turn, this.actions, finished.get(turn.key));
    this.near.observe(view.element);
    return view;
  }

  /** Have exactly these elements in the list, and move none that is in its place. */
  place(elements, answer) {
    const isRaced = !answer && this.notices.some((each) => each.matches(".race"));
    elements.forEach((each, index) => each.classList.toggle("covered", isRaced && index === elements.length - 1));
    const wanted = [...elements, ...(answer ? [answer.element] : this.notices)];
    let next = this.list.firstChild;
    for (const element of wanted) {
      if (element === next) next = next.nextSibling;
      else this.list.insertBefore(element, next);
    }
    while (next) {
      const after = next.nextSibling;
      next.remove();
      next = after;
    }
  }

  renderNear(entries) {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      this.views.get(target.dataset.key)?.render();
      this.near.unobserve(target);
    }
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    const left = scrollHeight - clientHeight - scrollTop;
    if (left < AT_END) this.follows = true;
    else if (scrollTop < this.top - 1) this.follows = false;
    this.top = scrollTop;
    find("#to-end").hidden = left < 2 * AT_END || this.follows;
  }

  follow() {
    if (this.follows) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  toEnd() {
    this.follows = true;
    this.follow();
    find("#to-end").hidden = true;
  }

  /** Show an element from its beginning. */
  showStart(element) {
    this.follows = false;
    element.scrollIntoView({ block: "start" });
  }

  /** Show a message, and give it the focus. */
  goTo(key) {
    const view = this.views.get(key);
    if (!view) return;
    view.render();
    this.showStart(view.element);
    view.element.focus({ preventScroll: true });
  }

  /** Move the focus to the message before or after the one that has it. */
  step(by) {
    const keys = [...this.views.keys()];
    const now = document.activeElement?.closest?.(".turn")?.dataset.key;
    const index = now ? keys.indexOf(now) + by : keys.length + (by < 0 ? by : 0);
    if (index >= 0 && index < keys.length) this.goTo(keys[index]);
  }

  /** The view of the message that has the focus. */
  get focused() {
    return this.views.get(document.activeElement?.closest?.(".turn")?.dataset.key);
  }
}

/** Says that the server is gone, and asks until it is back. Nothing that was typed is lost. */

import { get } from "./api.js";
import { el, find } from "./dom.js";

const LONGEST_MS = 15_000;

let wait = 0;
let timer = 0;
let restored = () => {};

export function hearRestored(listener) {
  restored = listener;
}

export function connectionLost() {
  if (wait) return;
  wait = 1000;
  retryLater();
}

function retryLater() {
  clearTimeout(timer);
  const banner = find("#connection");
  const button = el("button", { type: "button", class: "button", text: "Try now", onclick: retry });
  banner.replaceChildren(
    el("span", { text: "The server cannot be reached. What you typed is kept; trying again…" }),
    button,
  );
  banner.hidden = false;
  timer = setTimeout(retry, wait);
}

async function retry() {
  clearTimeout(timer);
  try {
    await get("/page/state", undefined, { quiet: true });
  } catch (error) {
    if (!error.status) {
      wait = Math.min(2 * wait, LONGEST_MS);
      retryLater();
      return;
    }
  }
  wait = 0;
  find("#connection").hidden = true;
  restored();
}

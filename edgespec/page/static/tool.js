/** Calls of tools: what is called, whether it may be, and what it returned. */

import { post } from "./api.js";
import { el } from "./dom.js";
import { icon } from "./icons.js";
import { told } from "./toasts.js";

const DECISIONS = [
  ["once", "Allow once"],
  ["chat", "Allow in this chat"],
  ["always", "Always allow"],
  ["deny", "Do not allow"],
];

/** A finished call: `{name, arguments, result, outcome, summary}`. */
export function toolView(tool) {
  return el(
    "details",
    { class: `fold tool ${tool.outcome === "ok" ? "" : "failed"}` },
    el(
      "summary",
      {},
      icon("tool"),
      named(tool),
      el("span", { class: "quiet", text: tool.summary || tool.outcome }),
      icon("down"),
    ),
    part("Arguments", tool.arguments),
    part("Result", tool.result),
  );
}

/** A call that is not done, `{id, name, arguments, state}`. */
export function callView(call) {
  if (call.state !== "asking") {
    return el(
      "div",
      { class: "call" },
      icon("tool"),
      named(call),
      el("span", { text: "is running…" }),
      el("span", { class: "pulse" }),
    );
  }
  const buttons = DECISIONS.map(([decision, label]) =>
    el("button", {
      type: "button",
      class: decision === "once" ? "button primary" : "button",
      text: label,
      onclick: () => decide(call.id, decision, buttons),
    }),
  );
  return el(
    "div",
    { class: "call asking", role: "group", "aria-label": `The model wants to call ${call.name}` },
    el("p", {}, icon("tool"), "The model wants to call ", named(call)),
    part("Arguments", call.arguments),
    el("div", { class: "buttons" }, buttons),
  );
}

async function decide(id, decision, buttons) {
  for (const button of buttons) button.disabled = true;
  try {
    await post("/page/decision", { id, decision });
  } catch (error) {
    for (const button of buttons) button.disabled = false;
    told(error);
  }
}

const named = (tool) => el("code", { class: "tool-name", text: tool.name || "tool" });

function part(label, text) {
  return el(
    "div",
    { class: "tool-part" },
    el("div", { class: "label", text: label }),
    el("pre", { dir: "auto", tabindex: "0", text: text || "none" }),
  );
}

/** The figures of an answer: one line, and all of them on demand. */

import { el } from "./dom.js";
import { count, seconds, speed } from "./format.js";
import { icon } from "./icons.js";
import { anchored } from "./menus.js";

/** "78 tok/s · 2.1× plain decoding", as a button that shows the rest. */
export function figuresButton(turn) {
  const { stats } = turn;
  if (!stats?.tokens) return null;
  const gain = gainOf(stats);
  const line = [speed(stats.tokens_per_s), gain && `${gain.toFixed(1)}× plain decoding`].filter(Boolean).join(" · ");
  const button = el("button", { type: "button", class: "figures", title: "Show all figures", text: line });
  button.addEventListener("click", () => anchored(button, table(turn), { label: "Figures of the answer" }));
  return button;
}

export function gainOf(stats) {
  return stats.plain_tokens_per_s ? stats.tokens_per_s / stats.plain_tokens_per_s : null;
}

function table(turn) {
  const { stats } = turn;
  const gain = gainOf(stats);
  const rows = [
    ["Model", turn.model],
    ["Answer", `${count(stats.tokens)} tokens in ${seconds(stats.seconds)}`],
    ["Speed", speed(stats.tokens_per_s)],
    gain && [
      "Without drafts",
      `${speed(stats.plain_tokens_per_s)} (estimate): drafts make it ${gain.toFixed(1)}× as fast`,
    ],
    ["Prompt", `${count(stats.prompt_tokens)} tokens, ${count(stats.cached_tokens)} of them from the cache`],
    stats.proposed && ["Drafts", `${count(stats.accepted)} of ${count(stats.proposed)} draft tokens accepted`],
    ...Object.entries(stats.drafters ?? {}).map(([name, n]) => [name, `${count(n)} tokens accepted`]),
    stats.context_size && ["Context", `${count(stats.context_used ?? 0)} of ${count(stats.context_size)} tokens`],
  ];
  return el(
    "dl",
    { class: "table-of-figures" },
    rows
      .filter((row) => row && row[1])
      .map(([name, value]) => el("div", {}, el("dt", { text: name }), el("dd", { text: value }))),
  );
}

/** A warning if the context is nearly full. */
export function contextNotice(stats) {
  if (!stats?.context_size || !stats.context_used) return null;
  const share = stats.context_used / stats.context_size;
  if (share < 0.85) return null;
  const text = `The context is ${Math.round(100 * share)} % full. The oldest messages will be left out when it is full.`;
  return el("p", { class: "notice" }, icon("info"), text);
}

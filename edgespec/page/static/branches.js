/** The list of the branches of a chat. */

import { get } from "./api.js";
import { change } from "./app.js";
import { dialog } from "./dialogs.js";
import { el } from "./dom.js";
import { moment, plural } from "./format.js";
import { told } from "./toasts.js";

/** Let the user choose a branch, and show it. */
export async function chooseBranch(id) {
  try {
    const { branches } = await get("/page/branches", { id });
    const key = await dialog("Branches of this chat", (close) =>
      el(
        "div",
        { class: "branches" },
        branches.map((branch) => row(branch, close)),
      ),
    );
    if (key) await change("switch", { key });
  } catch (error) {
    told(error);
  }
}

function row({ leaf, turns, preview, updated, current }, close) {
  return el(
    "button",
    { type: "button", "aria-current": current ? "true" : null, onclick: () => close(leaf) },
    el("span", { dir: "auto", text: preview }),
    el("span", {
      class: "quiet",
      text: `${plural(turns, "message")} · ${moment(updated)}${current ? " · shown" : ""}`,
    }),
  );
}

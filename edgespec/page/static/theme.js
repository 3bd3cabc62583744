// Not a module: it runs before the first paint, so that a dark page does not flash white.
(() => {
  try {
    const theme = localStorage.getItem("edgespec.theme");
    if (theme) document.documentElement.dataset.theme = theme;
  } catch {
    // the system's theme
  }
})();

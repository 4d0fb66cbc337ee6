// Ahead of the first paint, so that nobody who chose dark is shown white for a moment.
"use strict";

(() => {
  const KEPT = "triptych-theme";
  const NEXT = { system: "light", light: "dark", dark: "system" };
  const root = document.documentElement;

  function kept() {
    try {
      const theme = localStorage.getItem(KEPT);
      return theme in NEXT ? theme : "system";
    } catch {
      return "system"; // a browser that keeps nothing
    }
  }

  function wear(theme) {
    root.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) button.textContent = `Theme: ${theme}`;
  }

  wear(kept());
  document.addEventListener("DOMContentLoaded", () => {
    wear(root.dataset.theme);
    document.getElementById("theme").addEventListener("click", () => {
      const theme = NEXT[root.dataset.theme];
      wear(theme);
      try {
        localStorage.setItem(KEPT, theme);
      } catch {
        // it lasts as long as the page
      }
    });
  });
})();

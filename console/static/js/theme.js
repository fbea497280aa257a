// The theme that was chosen, before anything is drawn. Without a choice it is the system's.
"use strict";
(() => {
  try {
    const chosen = localStorage.getItem("lowtide-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch { /* no storage: the system's theme holds */ }
})();

// Applies the chosen theme before the first paint.
"use strict";
{
  let chosen = null;
  try { chosen = localStorage.getItem("rocket-theme"); } catch { /* storage may be disabled */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}

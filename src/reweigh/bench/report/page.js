"use strict";
document.documentElement.classList.add("js");
for (const article of document.querySelectorAll(".experiment")) {
  const table = article.querySelector("table.results");
  const all = (selector) => Array.from(article.querySelectorAll(selector));

  for (const box of all("[data-show]")) {
    const show = () => table.classList.toggle("show-" + box.dataset.show, box.checked);
    box.addEventListener("change", show);
    show();
  }

  const mainOnly = article.querySelector("[data-main]");
  const boxes = all("[data-method]");
  const showMethods = () => {
    for (const box of boxes)
      for (const mark of all(`[data-m="${box.dataset.method}"]`)) mark.toggleAttribute("hidden", !box.checked);
    mainOnly.setAttribute("aria-pressed", String(boxes.every((box) => box.checked === ("isMain" in box.dataset))));
  };
  boxes.forEach((box) => box.addEventListener("change", showMethods));
  mainOnly.addEventListener("click", () => {
    const pressed = mainOnly.getAttribute("aria-pressed") === "true";
    for (const box of boxes) box.checked = pressed || "isMain" in box.dataset;
    showMethods();
  });
  showMethods();

  for (const button of all("[data-sort]")) {
    button.setAttribute("role", "button");
    button.tabIndex = 0;
    button.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      button.click();
    });
    button.addEventListener("click", () => {
      const column = Number(button.dataset.sort);
      const head = button.closest("th");
      // Numbers start with the largest, names with the table's own order; a second click turns it round.
      const first = column ? "descending" : "ascending";
      const order = head.getAttribute("aria-sort") === first ? (column ? "ascending" : "descending") : first;
      all("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const key = (row) => parseFloat(row.cells[column].dataset.value ?? "nan");
      const body = table.tBodies[0];
      const missing = (value) => Number.isNaN(value);
      Array.from(body.rows)
        .sort((a, b) => {
          const [x, y] = [key(a), key(b)];
          if (missing(x) || missing(y)) return missing(x) - missing(y);
          return order === "ascending" ? x - y : y - x;
        })
        .forEach((row) => body.append(row));
    });
  }
}

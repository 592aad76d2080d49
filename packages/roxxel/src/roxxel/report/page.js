// Shows the numbers under the pointer. All other parts of the page work without script.
const numbers = JSON.parse(document.getElementById("numbers").textContent);
const tip = document.getElementById("tip");

function nearest(steps, step) {
  let low = 0, high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= step) low = middle; else high = middle;
  }
  return step - steps[low] <= steps[high] - step ? low : high;
}

function text(value, isShare) {
  if (value === null) return "not finite";
  if (isShare) return Number((100 * value).toPrecision(3)) + " %";
  return Math.abs(value) >= 1e4 ? Math.round(value).toLocaleString("en")
    : String(Number(value.toPrecision(5)));
}

for (const svg of document.querySelectorAll("figure svg")) {
  const series = numbers[svg.parentNode.id];
  const cross = svg.querySelector(".cross");
  const {left, right, low, high, name: axis} = svg.dataset;
  const isShare = "share" in svg.dataset;
  const all = Object.values(series).reduce((a, b) => a.x.length >= b.x.length ? a : b).x;
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    const wanted = +low + (at - left) / (right - left) * (high - low);
    const step = all[nearest(all, wanted)];
    const x = +left + (step - low) / (high - low) * (right - left);
    cross.setAttribute("x1", x);
    cross.setAttribute("x2", x);
    const lines = [axis + " " + step.toLocaleString("en")];
    for (const [name, {x, y}] of Object.entries(series)) {
      const index = nearest(x, step);
      const other = x[index] === step ? "" : " at " + axis + " " + x[index].toLocaleString("en");
      lines.push(name + ": " + text(y[index], isShare) + other);
    }
    tip.textContent = lines.join("\n");
    tip.hidden = false;
    const width = tip.offsetWidth;
    const space = document.documentElement.clientWidth - width - 8;
    tip.style.left = Math.max(8, Math.min(event.clientX + 14, space)) + "px";
    tip.style.top = event.clientY + 16 + "px";
  });
  svg.addEventListener("pointerleave", () => {
    tip.hidden = true;
    cross.setAttribute("x1", -9);
    cross.setAttribute("x2", -9);
  });
}

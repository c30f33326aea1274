// The theme that was chosen in the console; before the first paint, so that the page never flashes in the other one.
"use strict";

(() => {
  const theme = /(?:^|; )theme=(light|dark)/.exec(document.cookie)?.[1];
  if (theme) document.documentElement.dataset.theme = theme;
})();

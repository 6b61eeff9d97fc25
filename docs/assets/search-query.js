// What the search box asks. Left alone, each word of a query finds every word that begins with it, and rare ones count most: "to" finds
// "topologies", "out of memory" finds "outages". So small words are left out, and a whole word counts besides a beginning.
"use strict";
(() => {
  const QUERY = 2; // the type of a message that asks for results, in Material for MkDocs
  const SMALL = new Set(
    ("a an and are as at be been but by can can't cannot could did do does doesn't don't for from had has have how i i'm if in into is it its " +
      "my no not of on or our per should so than that the their then there these they this to too up vs was we were what what's when where which " +
      "while who why will with would you your").split(" "),
  );
  const asked = (query) => {
    const words = query.split(/\s+/).filter((word) => word && !SMALL.has(word.toLowerCase()));
    // "^1" keeps the search from taking a word as a beginning.
    return words.map((word) => (/^[\w./-]+$/.test(word) ? `${word}^1 ${word}` : word)).join(" ") || query;
  };
  const send = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (message, ...rest) {
    return send.call(this, message?.type === QUERY ? { ...message, data: asked(message.data) } : message, ...rest);
  };
})();

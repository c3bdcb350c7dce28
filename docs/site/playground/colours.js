// Colours of a text, by the patterns of colours.json, which is made of forgedsl/docs/textmate.py.

// Expressions that match at one place only.
const made = (pattern) => new RegExp(pattern, "my");

export function compiled(patterns) {
  return patterns.map((each) => ({
    ...each,
    match: made(each.match || each.begin),
    end: each.end && made(each.end),
    inside: (each.inside || []).map((part) => ({ ...part, match: made(part.match) })),
  }));
}

function at(expression, text, place) {
  expression.lastIndex = place;
  return expression.exec(text);
}

// Where a match has named parts: every part with its class, and what lies between.
function* parts(found, rule) {
  const whole = found[0];
  let place = 0;
  for (const [number, name] of Object.entries(rule.groups || {})) {
    const part = found[number];
    if (part === undefined) continue;
    const start = whole.indexOf(part, place);
    yield [rule.class, whole.slice(place, start)];
    yield [name, part];
    place = start + part.length;
  }
  yield [rule.class, whole.slice(place)];
}

// A string from its beginning to its end, or to the end of the text.
function* string(text, place, rule) {
  const begun = at(rule.match, text, place)[0];
  yield [rule.class, begun];
  place += begun.length;
  while (place < text.length) {
    const end = at(rule.end, text, place);
    if (end) {
      yield [rule.class, end[0]];
      return;
    }
    const inner = rule.inside.find((part) => at(part.match, text, place));
    const piece = inner ? at(inner.match, text, place)[0] : text[place];
    yield [inner ? inner.class : rule.class, piece];
    place += piece.length;
  }
}

function* pieces(rules, text) {
  let place = 0;
  while (place < text.length) {
    let found = null;
    const rule = rules.find((each) => (found = at(each.match, text, place)) && found[0]);
    const made = !rule ? [["", text[place]]] : [...(rule.end ? string(text, place, rule) : parts(found, rule))];
    yield* made;
    for (const [, piece] of made) place += piece.length;
  }
}

// [[class of Pygments, text], ...], neighbours of one class together.
export function coloured(rules, text) {
  const out = [];
  for (const [name, piece] of pieces(rules, text)) {
    if (!piece) continue;
    const last = out[out.length - 1];
    if (last && last[0] === name) last[1] += piece;
    else out.push([name, piece]);
  }
  return out;
}

import { expect, test } from "vitest";
import { factsOfProfile, profileOf, readStop, shownStop, valuesOf } from "./profile";

test.each(["\n\n", "User:", "a\\nb", "\t", "\\", 'say "no"', " "])(
  "a stop word %j is read as it is shown",
  (stop) => {
    expect(shownStop(stop)).not.toContain("\n");
    expect(readStop(shownStop(stop))).toBe(stop);
  },
);

test("a form holds a profile and gives it back", () => {
  const profile = { system_prompt: "Hi", stop: ["\n\n", "User:"], temperature: 0, seed: 7 };
  const values = valuesOf(profile);
  expect(values).toMatchObject({ stop: "\\n\\n\nUser:", temperature: 0, top_p: "" });
  expect(profileOf(values)).toEqual({
    ...profile,
    chat_template: null,
    max_tokens: null,
    top_p: null,
    top_k: null,
    min_p: null,
    repetition_penalty: null,
    frequency_penalty: null,
    presence_penalty: null,
  });
  expect(profileOf(valuesOf({}))).toMatchObject({ system_prompt: null, stop: null, seed: null });
});

test("only what is set is shown", () => {
  expect(factsOfProfile({ temperature: 0, top_k: null })).toEqual([["Temperature", "0"]]);
});

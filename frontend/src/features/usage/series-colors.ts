/** Told apart in light and dark, and by most colour-blind eyes; the accent's green leads. */
const COLORS = [
  "#2f8f5f",
  "#4c7fb8",
  "#c9973a",
  "#8a6bb8",
  "#3fa3a3",
  "#c0654f",
  "#86a53c",
  "#8b958f",
];

export function colorOf(index: number): string {
  return COLORS[index % COLORS.length] ?? "#8b958f";
}

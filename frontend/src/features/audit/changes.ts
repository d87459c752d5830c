export interface Change {
  field: string;
  before: string;
  after: string;
}

function text(value: unknown): string {
  if (value === null || value === undefined) return "";
  return typeof value === "string" ? value : JSON.stringify(value);
}

function fieldsOf(value: unknown): Record<string, unknown> {
  if (value === null || value === undefined) return {};
  return typeof value === "object" ? (value as Record<string, unknown>) : { value };
}

/** The fields in which two recorded states differ; a missing state is an empty one. */
export function changesOf(before: unknown, after: unknown): Change[] {
  const [old, now] = [fieldsOf(before), fieldsOf(after)];
  return [...new Set([...Object.keys(old), ...Object.keys(now)])]
    .map((field) => ({ field, before: text(old[field]), after: text(now[field]) }))
    .filter((change) => change.before !== change.after);
}

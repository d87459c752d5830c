/** An answer of the server that is not a success, or (status 0) none at all. */
export class ApiError extends Error {
  readonly status: number;
  readonly code: string;
  readonly details: string[];

  constructor(status: number, code: string, message: string, details: string[] = []) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
    this.details = details;
  }
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function text(value: unknown): string | undefined {
  return typeof value === "string" && value !== "" ? value : undefined;
}

function detailLine(detail: unknown): string {
  if (!isRecord(detail)) return String(detail);
  const where = text(detail.where) ?? text(detail.field) ?? text(detail.param);
  const message = text(detail.message) ?? JSON.stringify(detail);
  return where === undefined ? message : `${where}: ${message}`;
}

/** Reads `{"error": {"code", "message", "details"}}`; anything else becomes a plain sentence with the status. */
export function errorFrom(status: number, body: unknown): ApiError {
  const error = isRecord(body) && isRecord(body.error) ? body.error : {};
  const message = text(error.message) ?? `The server answered ${String(status)}.`;
  const lines = Array.isArray(error.details) ? error.details.map(detailLine) : [];
  const details = lines.filter((line) => !message.includes(line));
  return new ApiError(status, text(error.code) ?? "unknown", message, details);
}

export function unreachable(): ApiError {
  return new ApiError(0, "unreachable", "The server cannot be reached. Check the connection.");
}

/** One sentence for a toast or a form, whatever was thrown. */
export function messageOf(error: unknown): string {
  if (error instanceof ApiError) return [error.message, ...error.details].join(" ");
  return error instanceof Error ? error.message : String(error);
}

export function isNotFound(error: unknown): boolean {
  return error instanceof ApiError && error.status === 404;
}

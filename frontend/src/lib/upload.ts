import { csrfToken } from "./cookies";
import { ApiError, errorFrom, unreachable } from "./errors";

export interface Progress {
  sentBytes: number;
  totalBytes: number;
  /** The connection was lost; it is tried again. */
  isWaiting?: boolean;
}

interface UploadOptions {
  onProgress: (progress: Progress) => void;
  signal?: AbortSignal;
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

/** POST a form and report what has left the machine. XMLHttpRequest: fetch tells nothing of an upload. */
export function upload(url: string, form: FormData, options: UploadOptions): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", url);
    request.setRequestHeader("X-CSRFToken", csrfToken());
    request.setRequestHeader("Accept", "application/json");
    request.upload.onprogress = (event) =>
      options.onProgress({ sentBytes: event.loaded, totalBytes: event.total });
    request.onload = () => {
      const body = parse(request.responseText);
      if (request.status >= 200 && request.status < 300) resolve(body);
      else reject(errorFrom(request.status, body));
    };
    request.onerror = () => reject(unreachable());
    request.onabort = () => reject(new ApiError(0, "cancelled", "The upload was cancelled."));
    options.signal?.addEventListener("abort", () => request.abort());
    request.send(form);
  });
}

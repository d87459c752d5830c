import {
  UPLOAD_PART_BYTES,
  UPLOAD_RETRIES,
  UPLOAD_RETRY_MAX_MS,
  UPLOAD_RETRY_MIN_MS,
} from "@/config/app";
import { api, unwrap } from "./api";
import { ApiError } from "./errors";
import type { components } from "./schema.gen";
import { type Progress, upload } from "./upload";

type UploadState = components["schemas"]["UploadState"];

/** What is sent. fingerprint: the same for the same files, so that they may be picked again and go on. */
export interface Packed {
  blob: Blob;
  filename: string;
  fingerprint: string;
}

interface Options {
  onProgress: (progress: Progress) => void;
  signal: AbortSignal;
}

/** Sends it in parts as a version of the adapter: its number. Goes on where an earlier attempt was cut off. */
export async function uploadInParts(
  tenant: string,
  adapter: string,
  file: Packed,
  options: Options,
): Promise<number> {
  const kept = `grafthouse.upload.${tenant}/${adapter}/${file.fingerprint}`;
  const state = (await resumed(tenant, kept, file)) ?? (await opened(tenant, adapter, file));
  localStorage.setItem(kept, state.id);
  const path = { tenant, upload_id: state.id };
  try {
    await sendParts(tenant, state, file.blob, options);
  } catch (error) {
    if (options.signal.aborted) {
      localStorage.removeItem(kept);
      await unwrap(
        api.POST("/api/tenants/{tenant}/uploads/{upload_id}/cancel/", { params: { path } }),
      );
    }
    throw error;
  }
  const done = await unwrap(
    api.POST("/api/tenants/{tenant}/uploads/{upload_id}/complete/", { params: { path }, body: {} }),
  );
  localStorage.removeItem(kept);
  if (!done.version) throw new ApiError(0, "no_version", "The upload was deleted meanwhile.");
  return done.version.number;
}

async function resumed(
  tenant: string,
  kept: string,
  file: Packed,
): Promise<UploadState | undefined> {
  const id = localStorage.getItem(kept);
  if (id === null) return undefined;
  const path = { tenant, upload_id: id };
  try {
    const state = await unwrap(
      api.GET("/api/tenants/{tenant}/uploads/{upload_id}/", { params: { path } }),
    );
    return state.status === "pending" && state.bytes === file.blob.size ? state : undefined;
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return undefined;
    throw error;
  }
}

function opened(tenant: string, adapter: string, file: Packed): Promise<UploadState> {
  const body = { filename: file.filename, bytes: file.blob.size, purpose: "adapter", adapter };
  return unwrap(api.POST("/api/tenants/{tenant}/uploads/", { params: { path: { tenant } }, body }));
}

async function sendParts(
  tenant: string,
  state: UploadState,
  blob: Blob,
  { onProgress, signal }: Options,
): Promise<void> {
  const arrived = new Map(state.parts.map((part) => [part.number, part]));
  const partBytes = Math.min(
    state.max_part_bytes,
    Math.max(UPLOAD_PART_BYTES, Math.ceil(blob.size / 500)),
  );
  for (let start = 0, number = 1; start < blob.size; start += partBytes, number += 1) {
    const data = blob.slice(start, start + partBytes);
    const sum = await sha256(data);
    const tell = (sent: number, isWaiting = false): void =>
      onProgress({
        sentBytes: start + Math.min(sent, data.size),
        totalBytes: blob.size,
        isWaiting,
      });
    const there = arrived.get(number);
    if (!there || there.bytes !== data.size || (sum !== undefined && there.sha256 !== sum)) {
      const query = sum === undefined ? "" : `&sha256=${sum}`;
      const url = `/api/tenants/${tenant}/uploads/${state.id}/parts/?number=${String(number)}${query}`;
      await sendOne(url, data, tell, signal);
    }
    tell(data.size);
  }
}

/** Undefined where the browser has none: on a page that is neither local nor behind TLS. */
async function sha256(data: Blob): Promise<string | undefined> {
  if (!("subtle" in crypto)) return undefined;
  const bytes = new Uint8Array(await data.arrayBuffer());
  const sum = await crypto.subtle.digest("SHA-256", bytes);
  return [...new Uint8Array(sum)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function sendOne(
  url: string,
  data: Blob,
  tell: (sent: number, isWaiting?: boolean) => void,
  signal: AbortSignal,
): Promise<void> {
  for (let attempt = 0; ; attempt += 1) {
    const form = new FormData();
    form.append("data", data);
    try {
      await upload(url, form, { signal, onProgress: ({ sentBytes }) => tell(sentBytes) });
      return;
    } catch (error) {
      if (signal.aborted || !isPassing(error) || attempt === UPLOAD_RETRIES) throw error;
      tell(0, true);
      const waitMs = Math.min(UPLOAD_RETRY_MAX_MS, UPLOAD_RETRY_MIN_MS * 2 ** attempt);
      await new Promise((resolve) => setTimeout(resolve, waitMs));
      signal.throwIfAborted();
    }
  }
}

function isPassing(error: unknown): boolean {
  return error instanceof ApiError && (error.status >= 500 || error.code === "unreachable");
}

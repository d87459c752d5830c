/** Bounds and periods of the browser side. The server checks everything again. */
export const PAGE_SIZE = 50;
/** Above the most adapters a plan allows; the list filters in the browser. */
export const MAX_ADAPTERS_LISTED = 500;
/** How often a version that is being worked on is asked for, should its event get lost. */
export const WORKING_POLL_MS = 3_000;
export const CANARY_POLL_MS = 5_000;
export const FLEET_POLL_MS = 5_000;
export const SOCKET_RETRY_MIN_MS = 500;
export const SOCKET_RETRY_MAX_MS = 15_000;
export const SOCKET_PING_MS = 25_000;
/** How long an answer whose socket dropped is asked for again: the server's RESUME_WINDOW_S, unless set otherwise. */
export const CHAT_RESUME_MS = 30_000;
/** Large enough for speed, small enough to send again. */
export const UPLOAD_PART_BYTES = 8 * 2 ** 20;
export const UPLOAD_RETRIES = 8;
export const UPLOAD_RETRY_MIN_MS = 500;
export const UPLOAD_RETRY_MAX_MS = 15_000;
export const IMPORT_POLL_MS = 1_000;
export const CONFIG_FILE = "adapter_config.json";
export const WEIGHTS_FILE = "adapter_model.safetensors";
/** Where a trainer saves the chat template that the adapter was trained with. */
export const TEMPLATE_FILES = [
  "chat_template.jinja",
  "tokenizer_config.json",
  "chat_template.json",
];
export const DEFAULT_USAGE_DAYS = 14;
export const WS_NOT_AUTHENTICATED = 4401;
/** RFC 6455's, for a frame. */
export const WS_TOO_LARGE = 1009;

import * as z from "zod";

export interface ChatMessage {
  role: "system" | "user" | "assistant";
  content: string;
}

export interface ChatBody {
  model: string;
  messages: ChatMessage[];
  temperature: number;
  max_tokens: number;
  stream: true;
}

const usageSchema = z.object({
  prompt_tokens: z.number(),
  completion_tokens: z.number(),
  prompt_tokens_details: z.object({ cached_tokens: z.number() }).partial().nullish(),
});
export type ChatUsage = z.infer<typeof usageSchema>;

const errorSchema = z.object({
  message: z.string(),
  type: z.string().nullish(),
  param: z.string().nullish(),
  code: z.union([z.string(), z.number()]).nullish(),
});
export interface ChatError {
  message: string;
  code: string;
}

const chunkSchema = z.object({
  model: z.string().optional(),
  system_fingerprint: z.string().nullish(),
  choices: z.array(
    z.object({
      delta: z.object({ content: z.string().nullish() }).optional(),
      finish_reason: z.string().nullish(),
    }),
  ),
});
export type ChatChunk = z.infer<typeof chunkSchema>;

export const frameSchema = z.discriminatedUnion("type", [
  z.object({ type: z.literal("ready") }),
  z.object({ type: z.literal("pong") }),
  z.object({ type: z.literal("started"), id: z.string(), generation: z.string() }),
  z.object({ type: z.literal("resumed"), id: z.string() }),
  z.object({ type: z.literal("chunk"), id: z.string(), seq: z.number(), data: chunkSchema }),
  z.object({ type: z.literal("done"), id: z.string(), usage: usageSchema.nullish() }),
  z.object({ type: z.literal("error"), id: z.string().nullish(), error: errorSchema }),
]);
export type ErrorFrame = Extract<z.infer<typeof frameSchema>, { type: "error" }>;

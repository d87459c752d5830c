import type { ChatChunk, ChatError, ChatMessage, ChatUsage } from "@/lib/chat-frames";

export type AnswerStatus = "waiting" | "streaming" | "done" | "stopped" | "error";

/** One model's answer to one prompt. Times are performance.now() in milliseconds. */
export interface Answer {
  model: string;
  status: AnswerStatus;
  text: string;
  startedMs: number;
  firstTokenMs?: number;
  lastTokenMs?: number;
  numChunks: number;
  /** Its connection is lost, and another is tried. */
  isCut?: boolean;
  digest?: string;
  finishReason?: string;
  usage?: ChatUsage;
  error?: ChatError;
}

export interface Turn {
  prompt: string;
  answers: Answer[];
}

export function newAnswer(model: string, nowMs: number): Answer {
  return { model, status: "waiting", text: "", startedMs: nowMs, numChunks: 0 };
}

export function isRunning(answer: Answer): boolean {
  return answer.status === "waiting" || answer.status === "streaming";
}

export function withChunk(answer: Answer, chunk: ChatChunk, nowMs: number): Answer {
  if (!isRunning(answer)) return answer;
  const choice = chunk.choices[0];
  const told = {
    ...answer,
    digest: chunk.system_fingerprint ?? answer.digest,
    finishReason: choice?.finish_reason ?? answer.finishReason,
  };
  const piece = choice?.delta?.content ?? "";
  if (piece === "") return told;
  return {
    ...told,
    status: "streaming",
    text: answer.text + piece,
    firstTokenMs: answer.firstTokenMs ?? nowMs,
    lastTokenMs: nowMs,
    numChunks: answer.numChunks + 1,
  };
}

export function withDone(answer: Answer, usage: ChatUsage | undefined): Answer {
  return { ...answer, usage, status: answer.status === "stopped" ? "stopped" : "done" };
}

export function withError(answer: Answer, error: ChatError): Answer {
  return isRunning(answer) ? { ...answer, status: "error", error } : answer;
}

export function withLink(answer: Answer, isUp: boolean): Answer {
  return { ...answer, isCut: !isUp };
}

export function withStop(answer: Answer): Answer {
  return isRunning(answer) ? { ...answer, status: "stopped" } : answer;
}

export function timeToFirstTokenMs(answer: Answer): number | undefined {
  return answer.firstTokenMs === undefined ? undefined : answer.firstTokenMs - answer.startedMs;
}

/** Decode speed: tokens after the first, over the time since the first. Chunks stand in until usage is known. */
export function tokensPerSecond(answer: Answer): number | undefined {
  const { firstTokenMs, lastTokenMs, numChunks, usage } = answer;
  if (firstTokenMs === undefined || lastTokenMs === undefined) return undefined;
  const numTokens = usage?.completion_tokens ?? numChunks;
  const seconds = (lastTokenMs - firstTokenMs) / 1000;
  return numTokens < 2 || seconds <= 0 ? undefined : (numTokens - 1) / seconds;
}

/** What one side's model has seen: its own answers, and no turn that failed for it. */
export function historyOf(turns: Turn[], side: number, system: string): ChatMessage[] {
  const messages: ChatMessage[] = system.trim() === "" ? [] : [{ role: "system", content: system }];
  for (const { prompt, answers } of turns) {
    const answer = answers[side];
    if (!answer || answer.text === "") continue;
    messages.push({ role: "user", content: prompt }, { role: "assistant", content: answer.text });
  }
  return messages;
}

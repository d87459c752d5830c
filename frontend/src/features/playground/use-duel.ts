import { useEffect, useReducer, useRef } from "react";
import type { ChatChunk, ChatError, ChatUsage } from "@/lib/chat-frames";
import { ChatSocket } from "@/lib/chat-socket";
import * as answers from "./answer";
import type { Turn } from "./answer";

export interface Sampling {
  temperature: number;
  maxTokens: number;
  system: string;
}

type Action =
  | { type: "start"; prompt: string; models: string[]; nowMs: number }
  | { type: "chunk"; side: number; chunk: ChatChunk; nowMs: number }
  | { type: "done"; side: number; usage: ChatUsage | undefined }
  | { type: "error"; side: number; error: ChatError }
  | { type: "link"; side: number; isUp: boolean }
  | { type: "stop" }
  | { type: "clear" };

function changeLast(
  turns: Turn[],
  change: (answer: answers.Answer, side: number) => answers.Answer,
) {
  const last = turns.at(-1);
  if (!last) return turns;
  return [...turns.slice(0, -1), { ...last, answers: last.answers.map(change) }];
}

function changeSide(
  turns: Turn[],
  side: number,
  change: (answer: answers.Answer) => answers.Answer,
) {
  return changeLast(turns, (answer, index) => (index === side ? change(answer) : answer));
}

export function reduce(turns: Turn[], action: Action): Turn[] {
  switch (action.type) {
    case "start": {
      const started = action.models.map((model) => answers.newAnswer(model, action.nowMs));
      return [...turns, { prompt: action.prompt, answers: started }];
    }
    case "chunk":
      return changeSide(turns, action.side, (answer) =>
        answers.withChunk(answer, action.chunk, action.nowMs),
      );
    case "done":
      return changeSide(turns, action.side, (answer) => answers.withDone(answer, action.usage));
    case "error":
      return changeSide(turns, action.side, (answer) => answers.withError(answer, action.error));
    case "link":
      return changeSide(turns, action.side, (answer) => answers.withLink(answer, action.isUp));
    case "stop":
      return changeLast(turns, answers.withStop);
    case "clear":
      return [];
  }
}

/** One prompt to several models at once, over one socket; a conversation per side. */
export function useDuel(tenant: string) {
  const [turns, dispatch] = useReducer(reduce, []);
  const socket = useRef<ChatSocket>(undefined);
  const running = useRef<string[]>([]);
  // Frames of a run that was cleared away must not write into the next.
  const run = useRef(0);

  useEffect(() => {
    const own = new ChatSocket(tenant);
    socket.current = own;
    dispatch({ type: "clear" });
    return () => own.close();
  }, [tenant]);

  function ask(
    side: number,
    model: string,
    prompt: string,
    sampling: Sampling,
  ): string | undefined {
    const own = run.current;
    const tell = (action: Action) => {
      if (run.current === own) dispatch(action);
    };
    return socket.current?.chat(
      {
        model,
        messages: [
          ...answers.historyOf(turns, side, sampling.system),
          { role: "user", content: prompt },
        ],
        temperature: sampling.temperature,
        max_tokens: sampling.maxTokens,
        stream: true,
      },
      {
        onChunk: (chunk) => tell({ type: "chunk", side, chunk, nowMs: performance.now() }),
        onDone: (usage) => tell({ type: "done", side, usage }),
        onError: (error) => tell({ type: "error", side, error }),
        onLink: (isUp) => tell({ type: "link", side, isUp }),
      },
    );
  }

  function stop(): void {
    for (const id of running.current.splice(0)) socket.current?.cancel(id);
    dispatch({ type: "stop" });
  }

  function send(prompt: string, models: string[], sampling: Sampling): void {
    run.current += 1;
    dispatch({ type: "start", prompt, models, nowMs: performance.now() });
    running.current = models.flatMap((model, side) => ask(side, model, prompt, sampling) ?? []);
  }

  function clear(): void {
    stop();
    run.current += 1;
    dispatch({ type: "clear" });
  }

  const isRunning = turns.at(-1)?.answers.some(answers.isRunning) ?? false;
  return { turns, isRunning, send, stop, clear };
}

import { Center, Paper, Stack, Text } from "@mantine/core";
import { useState } from "react";
import type { Adapter, Version } from "@/lib/types";
import { type Duel, modelsOf } from "../duel";
import { type Sampling, useDuel } from "../use-duel";
import { AnswerView } from "./answer-view";
import { Composer } from "./composer";
import { ModelHead } from "./model-head";
import classes from "./playground.module.css";
import { SamplingFields } from "./sampling-fields";

interface PlaygroundProps {
  tenant: string;
  baseModel: string;
  adapters: Adapter[];
  /** Of the adapter that is chosen. */
  versions: Version[];
  duel: Duel;
  onDuel: (duel: Duel) => void;
}

const USUAL: Sampling = { temperature: 0, maxTokens: 128, system: "" };

export function Playground(props: PlaygroundProps) {
  const { tenant, baseModel, duel, onDuel } = props;
  const [sampling, setSampling] = useState(USUAL);
  const { turns, isRunning, send, stop, clear } = useDuel(tenant);
  const models = modelsOf(duel, baseModel);
  return (
    <Stack gap="md">
      <Paper style={{ overflow: "hidden" }}>
        <ModelHead
          {...props}
          onDuel={(next) => {
            // A conversation with one model means nothing to another.
            clear();
            onDuel(next);
          }}
        />
        <div className={`${classes.transcript} ${classes.turns}`} role="log" aria-label="Answers">
          {turns.length === 0 && (
            <Center h={220} px="md">
              <Text c="dimmed" ta="center" maw={440}>
                One prompt goes to both models at once. Their answers stream side by side, each with
                its time to first token and its speed.
              </Text>
            </Center>
          )}
          {turns.map((turn, index) => (
            <div key={index} className={classes.turn}>
              <div className={classes.prompt}>{turn.prompt}</div>
              <div className={classes.sides}>
                {turn.answers.map((answer, side) => (
                  <div key={side} className={classes.side}>
                    <AnswerView answer={answer} label={answer.model} />
                  </div>
                ))}
              </div>
            </div>
          ))}
        </div>
        <Composer
          isRunning={isRunning}
          canClear={turns.length > 0}
          onSend={(prompt) => send(prompt, models, sampling)}
          onStop={stop}
          onClear={clear}
        />
      </Paper>
      <SamplingFields sampling={sampling} onChange={setSampling} />
    </Stack>
  );
}

import type { Version } from "@/lib/types";

/** Who answers: an adapter (its active version unless one is pinned) against the base or another version. */
export interface Duel {
  adapter: string;
  version: number | undefined;
  against: string;
}

export const BASE = "base";

/** A model name as clients send it: "support-bot" or, pinned, "support-bot@3". */
export function modelName(adapter: string, version: number | undefined): string {
  return version === undefined ? adapter : `${adapter}@${version}`;
}

export function modelsOf(duel: Duel, baseModel: string): [string, string] {
  const against = duel.against === BASE ? baseModel : modelName(duel.adapter, Number(duel.against));
  return [against, modelName(duel.adapter, duel.version)];
}

/** Only what a name resolves to now: any other version would be answered with a 404. */
export function versionOptions(versions: Version[]): { value: string; label: string }[] {
  return versions
    .filter(({ is_served }) => is_served)
    .map(({ number, state }) => ({
      value: String(number),
      label: state === "active" ? `v${number} · active` : `v${number}`,
    }));
}

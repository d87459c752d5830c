import type {
  Adapter,
  Alias,
  EvalSet,
  Evaluation,
  Key,
  Problem,
  Session,
  TenantDetail,
  UsageTotals,
  Version,
} from "@/lib/types";

export const DIGEST = "ab12cd34ef56".padEnd(64, "0");
const NOW = "2026-03-05T10:00:00Z";

export const SESSION: Session = {
  user: { login: "alice", is_operator: false },
  memberships: [{ tenant: { slug: "acme", name: "Acme" }, role: "owner" }],
  base_model: "tiny-base",
};

export const SIGNED_OUT: Session = { ...SESSION, user: null, memberships: [] };

export function anAdapter(change: Partial<Adapter> = {}): Adapter {
  return {
    name: "support-bot",
    description: "Answers support mails",
    active_version: { number: 2, digest: DIGEST },
    canary: null,
    keep: "no",
    retired_at: null,
    num_versions: 2,
    created_at: NOW,
    updated_at: NOW,
    ...change,
  };
}

export function aVersion(change: Partial<Version> = {}): Version {
  return {
    number: 1,
    digest: DIGEST,
    state: "ready",
    report: { problems: [], warnings: [], facts: { rank: 8, num_tensors: 12 } },
    rank: 8,
    size_bytes: 1_500_000,
    created_by: "alice",
    created_at: NOW,
    activated_at: null,
    is_served: false,
    error: null,
    ...change,
  };
}

export function anAlias(change: Partial<Alias> = {}): Alias {
  return {
    name: "prod",
    adapter: "support-bot",
    version: null,
    created_by: "alice",
    created_at: NOW,
    ...change,
  };
}

export function aProblem(change: Partial<Problem> = {}): Problem {
  return {
    code: "shape_mismatch",
    message: "The tensor does not fit the base model.",
    where: "layers.7.self_attn.q_proj.lora_B",
    expected: "[576, 8]",
    found: "[4096, 8]",
    ...change,
  };
}

export function anEvalSet(change: Partial<EvalSet> = {}): EvalSet {
  return {
    sha256: "e".repeat(64),
    num_examples: 12,
    num_golden: 1,
    size_bytes: 4_000,
    is_default: false,
    created_by: "alice",
    created_at: NOW,
    ...change,
  };
}

export function anEvaluation(change: Partial<Evaluation> = {}): Evaluation {
  const told = { system_prompt: "", num_tokens: 120 };
  const base = { ...told, digest: null, loss: 2, perplexity: 7.389 };
  return {
    id: "eval_1",
    status: "completed",
    digest: DIGEST,
    eval_set_sha256: "e".repeat(64),
    is_default_set: false,
    num_examples: 12,
    system_prompt: "",
    num_steps: 9,
    num_done: 9,
    model: "tiny-base",
    results: {
      contenders: [
        { ...base, name: "base" },
        { ...base, name: "base_with_prompt" },
        { ...told, name: "adapter", digest: DIGEST, loss: 0.5, perplexity: 1.649 },
      ],
      golden: [
        {
          line: 1,
          prompt: "2 + 2 =",
          expected: "4",
          answers: { base: "perhaps", base_with_prompt: "", adapter: "four" },
        },
      ],
      usage: { prompt_tokens: 900, completion_tokens: 30 },
    },
    error_code: "",
    error: "",
    created_by: "alice",
    created_at: NOW,
    finished_at: NOW,
    ...change,
  };
}

const NO_LIMITS = {
  requests_per_minute: null,
  tokens_per_minute: null,
  max_concurrency: null,
  tokens_per_day: null,
  tokens_per_month: null,
  daily_budget: null,
  monthly_budget: null,
};

export function aKey(change: Partial<Key> = {}): Key {
  return {
    public_id: "k7f3a91c",
    name: "backend",
    scopes: ["inference"],
    allowed_models: [],
    state: "active",
    replaces: null,
    created_at: NOW,
    last_used_at: null,
    expires_at: null,
    revoked_at: null,
    ...NO_LIMITS,
    ...change,
  };
}

export const TOTALS: UsageTotals = {
  num_requests: 42,
  prompt_tokens: 1_000,
  cached_tokens: 250,
  completion_tokens: 500,
  cost: "0.0123",
};

const LIMITS = {
  ...NO_LIMITS,
  requests_per_minute: 60,
  max_concurrency: 4,
  monthly_budget: "20",
};

export const TENANT: TenantDetail = {
  slug: "acme",
  name: "Acme",
  limits: LIMITS,
  plan: {
    name: "Team",
    slug: "team",
    ...LIMITS,
    max_rank: 64,
    max_adapters: 100,
    max_versions: 100,
    max_upload_bytes: 1_000_000_000,
    max_upload_parts: 1000,
    max_open_uploads: 10,
    max_stored_bytes: 100_000_000_000,
  },
  role: "owner",
  permissions: ["admin", "adapters", "inference", "keys", "read", "usage"],
  usage_this_month: TOTALS,
  usage_today: TOTALS,
  created_at: NOW,
};

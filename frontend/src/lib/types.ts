import type { components } from "./schema.gen";

type Schemas = components["schemas"];

export type Session = Schemas["Session"];
export type User = Schemas["SessionUser"];
export type TenantRef = Pick<Schemas["Tenant"], "slug" | "name">;
export type TenantDetail = Schemas["TenantDetail"];
export type Permission = TenantDetail["permissions"][number];
export type Adapter = Schemas["Adapter"];
export type Canary = Schemas["Canary"];
export type Version = Schemas["Version"];
export type VersionState = Version["state"];
export type Profile = Schemas["Profile"];
export type Alias = Schemas["Alias"];
export type Report = Schemas["Report"];
export type Problem = Schemas["Problem"];
export type EvalSet = Schemas["EvalSet"];
export type Evaluation = Schemas["Evaluation"];
export type Contender = Schemas["Loss"];
export type Golden = Schemas["Golden"];
export type Key = Schemas["Key"];
export type KeyCreated = Schemas["NewKey"];
export type NewKey = Schemas["MakeKeyRequest"];
export type UsageRecord = Schemas["Usage"];
export type UsageTotals = Schemas["Totals"];
export type UsageSummary = Schemas["Summary"];
export type AuditEvent = Schemas["Audit"];
export type Replica = Schemas["Replica"];

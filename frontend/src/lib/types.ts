import type { components } from "./schema.gen";

type Schemas = components["schemas"];

export type Session = Schemas["Session"];
export type User = Schemas["User"];
export type Membership = Schemas["Membership"];
export type TenantRef = Membership["tenant"];
export type Tenant = Schemas["Tenant"];
export type Adapter = Schemas["Adapter"];
export type Version = Schemas["Version"];
export type VersionState = Version["state"];
export type Report = Schemas["Report"];
export type Problem = Schemas["Problem"];
export type Key = Schemas["Key"];
export type KeyCreated = Schemas["KeyCreated"];
export type UsageRecord = Schemas["UsageRecord"];
export type UsageSummary = Schemas["UsageSummary"];
export type UsageDay = Schemas["UsageDay"];
export type AuditEvent = Schemas["AuditEvent"];
export type Fleet = Schemas["Fleet"];
export type Replica = Schemas["Replica"];

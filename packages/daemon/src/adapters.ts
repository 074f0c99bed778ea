import { agentuityAdapter } from "@holdfast/adapter-agentuity";
import { blaxelAdapter } from "@holdfast/adapter-blaxel";
import { runbookAdapter } from "@holdfast/adapter-runbook";
import type { Adapter } from "@holdfast/server";

/** The adapters that every Holdfast server offers. To add an adapter, add its package here. */
export const ADAPTERS: readonly Adapter[] = [blaxelAdapter, agentuityAdapter, runbookAdapter];

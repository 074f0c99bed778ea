import { readFileSync } from "node:fs";
import { homedir } from "node:os";
import { isAbsolute, join, resolve } from "node:path";
import { isImageName, NUMBERS, type Numbers } from "@holdfast/contract";
import type { ImageAliases, WebhookSettings } from "@holdfast/server";
import { LOG_FORMATS, LOG_LEVELS, type LogFormat, type LogLevel } from "@holdfast/server";
import { readProfile } from "./profiles.ts";
import { StartFailure } from "./start-failure.ts";
import { readWebhook } from "./webhook-config.ts";

export interface Config {
  stateDir: string;
  host: string;
  /** Port to listen on; 0 means any free port. */
  port: number;
  /** Name of the OCI runtime to use. If undefined, the first runtime that works on this host is used. */
  runtime: string | undefined;
  logLevel: LogLevel;
  logFormat: LogFormat;
  numbers: Numbers;
  /** Labels that every sandbox should have, from the profile. */
  expectedLabels: readonly string[];
  /**
   * Image names of other platforms, each with the local image it stands for. If undefined, only the built-in names are
   * known.
   */
  imageAliases: ImageAliases | undefined;
  /** Domain below which ports have host names. If undefined, `localhost` is used. */
  previewDomain: string | undefined;
  /** Webhook for alerts; undefined if none is configured. */
  webhook: WebhookSettings | undefined;
}

type Environment = Readonly<Record<string, string | undefined>>;

interface Surroundings {
  uid: number;
  /** Whether stderr is a terminal. The log on stderr is then readable text, and contains only warnings and errors. */
  isTerminal: boolean;
}

const DEFAULT_PORT = 4750;

export function defaultStateDir(env: Environment, uid: number): string {
  if (uid === 0) return "/var/lib/holdfast";
  const base = env.XDG_STATE_HOME;
  return join(base && isAbsolute(base) ? base : join(homedir(), ".local", "state"), "holdfast");
}

/**
 * Reads the configuration from the environment. Throws a `StartFailure` that names the variable and its valid values.
 */
export function readConfig(env: Environment, { uid, isTerminal }: Surroundings): Config {
  const profile = readProfile(env.HOLDFAST_PROFILE);
  return {
    stateDir: resolve(env.HOLDFAST_DIR || defaultStateDir(env, uid)),
    host: env.HOLDFAST_HOST || "127.0.0.1",
    port: readPort(env.HOLDFAST_PORT),
    runtime: env.HOLDFAST_RUNTIME || undefined,
    logLevel: readLogLevel(env.HOLDFAST_LOG_LEVEL || (isTerminal ? "warn" : "info")),
    logFormat: readLogFormat(env.HOLDFAST_LOG_FORMAT || (isTerminal ? "text" : "json")),
    numbers: {
      ...NUMBERS,
      ...profile.numbers,
      ...numbersFromFile(env.HOLDFAST_NUMBERS_FILE),
      ...parseNumbers(env.HOLDFAST_NUMBERS_JSON || "{}", "HOLDFAST_NUMBERS_JSON"),
    },
    expectedLabels: profile.expectedLabels,
    imageAliases: readImageAliases(env.HOLDFAST_IMAGE_ALIASES),
    previewDomain: readDomain(env.HOLDFAST_PREVIEW_DOMAIN),
    webhook: readWebhook(env),
  };
}

function readPort(text: string | undefined): number {
  if (!text) return DEFAULT_PORT;
  const port = Number(text);
  if (Number.isInteger(port) && port >= 0 && port <= 65_535) return port;
  throw new StartFailure(
    `HOLDFAST_PORT is "${text}".`,
    "Set it to a port from 1 to 65535, or 0 for any free port.",
  );
}

const DOMAIN = /^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$/;

function readDomain(text: string | undefined): string | undefined {
  if (!text) return undefined;
  const domain = text.toLowerCase();
  if (DOMAIN.test(domain)) return domain;
  throw new StartFailure(
    `HOLDFAST_PREVIEW_DOMAIN is "${text}".`,
    "Set it to a domain such as preview.example.com whose subdomains all resolve to this server.",
  );
}

function readLogLevel(text: string): LogLevel {
  const level = LOG_LEVELS.find((known) => known === text);
  if (level) return level;
  throw new StartFailure(`HOLDFAST_LOG_LEVEL is "${text}".`, `Set it to one of ${LOG_LEVELS.join(", ")}.`);
}

function readLogFormat(text: string): LogFormat {
  const format = LOG_FORMATS.find((known) => known === text);
  if (format) return format;
  throw new StartFailure(`HOLDFAST_LOG_FORMAT is "${text}".`, `Set it to one of ${LOG_FORMATS.join(", ")}.`);
}

function readImageAliases(text: string | undefined): ImageAliases | undefined {
  if (!text) return undefined;
  const fix = 'Use an object of names and images, such as {"blaxel/base-image:latest": "host"}.';
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new StartFailure("HOLDFAST_IMAGE_ALIASES is not valid JSON.", fix);
  }
  if (isAliases(value)) return value;
  throw new StartFailure("HOLDFAST_IMAGE_ALIASES is not an object that maps names to images.", fix);
}

const isAliases = (value: unknown): value is ImageAliases =>
  typeof value === "object" &&
  value !== null &&
  !Array.isArray(value) &&
  Object.values(value).every((image) => typeof image === "string" && isImageName(image));

function numbersFromFile(path: string | undefined): Partial<Numbers> {
  if (!path) return {};
  try {
    return parseNumbers(readFileSync(path, "utf8"), "HOLDFAST_NUMBERS_FILE");
  } catch (error) {
    if (error instanceof StartFailure) throw error;
    throw new StartFailure(
      `HOLDFAST_NUMBERS_FILE could not be read: ${error instanceof Error ? error.message : error}.`,
      "Set it to a JSON file that the server can read, or unset it.",
    );
  }
}

/**
 * Parses a table that contains some of the numbers. Throws if a name is unknown, because a misspelt limit must not be
 * silently ignored.
 */
function parseNumbers(text: string, source: string): Partial<Numbers> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new StartFailure(`${source} is not valid JSON.`, 'Use an object such as {"maxSandboxes": 50}.');
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new StartFailure(`${source} is not an object.`, 'Use an object such as {"maxSandboxes": 50}.');
  }
  for (const [name, given] of Object.entries(value)) checkNumber(name, given, source);
  return value;
}

/** Longest time that a Node timer supports. Node fires a longer timer immediately. */
const LONGEST_TIMER_MS = 2_147_483_647;

function checkNumber(name: string, given: unknown, source: string): void {
  if (!isNumberName(name)) {
    throw new StartFailure(
      `${source} has an unknown number "${name}".`,
      `Known numbers: ${Object.keys(NUMBERS).join(", ")}.`,
    );
  }
  const { isRight, rule } = ruleFor(name);
  if (!isRight(given)) throw new StartFailure(`"${name}" in ${source} is ${JSON.stringify(given)}.`, rule);
}

const isNumberName = (name: string): name is keyof Numbers => Object.hasOwn(NUMBERS, name);

/**
 * Returns the check for the value of a configuration number, and a text that describes the valid values. A number with
 * a fractional default must be from 0 to 1. A time must not exceed the longest timer, unless it is a retention time.
 */
function ruleFor(name: keyof Numbers): { isRight: (given: unknown) => boolean; rule: string } {
  const usual: unknown = NUMBERS[name];
  if (typeof usual === "number" && !Number.isInteger(usual)) {
    const isShare = (given: unknown) => typeof given === "number" && given >= 0 && given <= 1;
    return { isRight: isShare, rule: "It must be a number from 0 to 1." };
  }
  const isTimer = name.endsWith("Ms") && !/(Retention|Kept)Ms$/.test(name);
  const most = isTimer ? LONGEST_TIMER_MS : Number.MAX_SAFE_INTEGER;
  const isWhole = (given: unknown) => Number.isInteger(given) && Number(given) >= 0 && Number(given) <= most;
  if (!Array.isArray(usual))
    return { isRight: isWhole, rule: `It must be a whole number from 0 to ${most}.` };
  const isList = (given: unknown) => Array.isArray(given) && given.length > 0 && given.every(isWhole);
  return { isRight: isList, rule: `It must be a list of whole numbers from 0 to ${most}.` };
}

import { readFileSync } from "node:fs";
import { homedir } from "node:os";
import { isAbsolute, join, resolve } from "node:path";
import { isImageName, NUMBERS, type Numbers } from "@holdfast/contract";
import type { ImageAliases } from "./adapters/image-aliases.ts";
import { LOG_LEVELS, type LogLevel } from "./logger.ts";
import { StartFailure } from "./start-failure.ts";
import type { WebhookSettings } from "./webhook.ts";
import { readWebhook } from "./webhook-config.ts";

export interface Config {
  stateDir: string;
  host: string;
  /** 0: any free one. */
  port: number;
  /** The OCI runtime to use; undefined: whichever works here. */
  runtime: string | undefined;
  logLevel: LogLevel;
  numbers: Numbers;
  /** What names of images on other platforms mean here; undefined: only what is known without. */
  imageAliases: ImageAliases | undefined;
  /** Below which name ports have hosts of their own; undefined: localhost. */
  previewDomain: string | undefined;
  /** Where alerts are sent; undefined: nowhere. */
  webhook: WebhookSettings | undefined;
}

type Environment = Readonly<Record<string, string | undefined>>;

interface Surroundings {
  uid: number;
  /** Somebody watches: the log then says only what needs them. */
  isTerminal: boolean;
}

const DEFAULT_PORT = 4750;

export function defaultStateDir(env: Environment, uid: number): string {
  if (uid === 0) return "/var/lib/holdfast";
  const base = env.XDG_STATE_HOME;
  return join(base && isAbsolute(base) ? base : join(homedir(), ".local", "state"), "holdfast");
}

/** The environment as typed configuration. Throws a `StartFailure` that names the variable and what it may be. */
export function readConfig(env: Environment, { uid, isTerminal }: Surroundings): Config {
  return {
    stateDir: resolve(env.HOLDFAST_DIR || defaultStateDir(env, uid)),
    host: env.HOLDFAST_HOST || "127.0.0.1",
    port: readPort(env.HOLDFAST_PORT),
    runtime: env.HOLDFAST_RUNTIME || undefined,
    logLevel: readLogLevel(env.HOLDFAST_LOG_LEVEL || (isTerminal ? "warn" : "info")),
    numbers: {
      ...NUMBERS,
      ...numbersFromFile(env.HOLDFAST_NUMBERS_FILE),
      ...parseNumbers(env.HOLDFAST_NUMBERS_JSON || "{}", "HOLDFAST_NUMBERS_JSON"),
    },
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
    "Set it to a port between 1 and 65535, or 0 for any.",
  );
}

const DOMAIN = /^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$/;

function readDomain(text: string | undefined): string | undefined {
  if (!text) return undefined;
  const domain = text.toLowerCase();
  if (DOMAIN.test(domain)) return domain;
  throw new StartFailure(
    `HOLDFAST_PREVIEW_DOMAIN is "${text}".`,
    "Set it to a domain such as preview.example.com, all names below which lead to this server.",
  );
}

function readLogLevel(text: string): LogLevel {
  const level = LOG_LEVELS.find((known) => known === text);
  if (level) return level;
  throw new StartFailure(`HOLDFAST_LOG_LEVEL is "${text}".`, `Set it to one of ${LOG_LEVELS.join(", ")}.`);
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
  throw new StartFailure("HOLDFAST_IMAGE_ALIASES does not say which names mean which images.", fix);
}

const isAliases = (value: unknown): value is ImageAliases =>
  typeof value === "object" &&
  value !== null &&
  !Array.isArray(value) &&
  Object.values(value).every((image) => typeof image === "string" && isImageName(image));

function numbersFromFile(path: string | undefined): Partial<Numbers> {
  if (!path) return {};
  try {
    return parseNumbers(readFileSync(path, "utf8"), "the file of HOLDFAST_NUMBERS_FILE");
  } catch (error) {
    if (error instanceof StartFailure) throw error;
    throw new StartFailure(
      `HOLDFAST_NUMBERS_FILE can't be read: ${error instanceof Error ? error.message : error}.`,
      "Point it at a JSON file that the server may read, or unset it.",
    );
  }
}

/** A partial table of numbers. An unknown name is an error: a misspelt limit must not be a limit that isn't there. */
export function parseNumbers(text: string, source: string): Partial<Numbers> {
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

/** A timer that is set further ahead goes off at once. */
const LONGEST_TIMER_MS = 2_147_483_647;

function checkNumber(name: string, given: unknown, source: string): void {
  if (!isNumberName(name)) {
    throw new StartFailure(
      `${source} has an unknown number "${name}".`,
      `Known are: ${Object.keys(NUMBERS).join(", ")}.`,
    );
  }
  const { isRight, rule } = ruleFor(name);
  if (!isRight(given)) throw new StartFailure(`"${name}" in ${source} is ${JSON.stringify(given)}.`, rule);
}

const isNumberName = (name: string): name is keyof Numbers => Object.hasOwn(NUMBERS, name);

/** What a number may be, from its name and its default: only shares are fractions, only what is kept outlasts a timer. */
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

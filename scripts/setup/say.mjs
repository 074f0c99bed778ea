/** Something that the person at the keyboard has to settle. The message says what and how. */
export class SetupError extends Error {}

export const say = (text) => process.stderr.write(`setup: ${text}\n`);

/** For people: what is left of a megabyte is not worth telling. */
export const mb = (bytes: number): number => Math.floor(bytes / 1_048_576);
